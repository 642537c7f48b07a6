// @ts-check
// Chooses the next token from its logits.

import { largest, logSumExp } from "./predictions.js";

/**
 * The likeliest token at temperature 0; otherwise a random draw from softmax(logits / temperature).
 * @param {Float64Array} logits
 * @param {number} temperature
 * @param {() => number} random from 0 to below 1
 */
export function sampleToken(logits, temperature, random = Math.random) {
  if (temperature === 0) return largest(logits, 1)[0];
  const scaled = logits.map((x) => x / temperature);
  const lse = logSumExp(scaled);
  let left = random();
  let last = 0; // the last token with a probability, for rounding
  for (let id = 0; id < scaled.length; id++) {
    const probability = Math.exp(scaled[id] - lse);
    if (probability > 0) last = id;
    left -= probability;
    if (left < 0) return id;
  }
  return last;
}
