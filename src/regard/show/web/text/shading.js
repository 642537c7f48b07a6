// @ts-check
// From weights to the shades of tokens. It knows numbers; the tokens themselves are painted elsewhere.

import { makeScale } from "../parts/colours.js";

const LEVELS = 64; // shades: a token whose shade stays the same is left alone
const PLAIN = 0; // the level of a token without a shade
const UNSEEN = 1; // and of one that gets nothing
const FIRST = 2; // of the shades

/**
 * The greatest number that is shaded, whatever its sign, at which the colours end.
 * @param {Float32Array} weights
 * @param {number} from the token that the first weight belongs to
 * @param {(token: number) => boolean} counts whether the colours are to suit a token
 */
export function shadingTop(weights, from, counts) {
  let top = 0;
  weights.forEach((w, i) => {
    if (Math.abs(w) > top && counts(i + from)) top = Math.abs(w);
  });
  return top || 1;
}

/**
 * The level of every token; all are plain if nothing is shaded.
 * @param {Shaded | null} shaded
 * @param {number} size the number of tokens
 * @param {string} scale "linear" or "log"
 */
export function levels(shaded, size, scale) {
  const all = new Uint8Array(size);
  if (!shaded) return all;
  const { top, weights, from, token: own, without, signed } = shaded;
  const shade = makeScale({ scale, top, bottom: Math.min(1e-4, top / 10), signed });
  for (let token = 0; token < size; token++) {
    const w = weights[token - from] ?? 0;
    if (without.has(token)) all[token] = PLAIN;
    else if (w > 0 || (signed && w < 0)) all[token] = FIRST + Math.round(shade.at(w) * LEVELS);
    else all[token] = token === own ? PLAIN : UNSEEN;
  }
  return all;
}

/**
 * What a level looks like: its place on the colour ramp, or null, and whether the token gets nothing.
 * @param {number} level
 * @param {boolean} signed
 */
export function shadeOf(level, signed) {
  const ground = FIRST + (signed ? LEVELS / 2 : 0);
  return { t: level < FIRST || level === ground ? null : (level - FIRST) / LEVELS, unseen: level === UNSEEN };
}
