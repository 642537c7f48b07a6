// @ts-check
// What was measured while a model wrote with the cache and without it. It knows numbers, not the page.

import { last } from "../common/arrays.js";
import { bytes, count, milliseconds } from "../common/format.js";

/** @typedef {"computed" | "keys_read" | "seconds"} Measured */

/**
 * @typedef {object} Measurement one line of the table
 * @property {string} title
 * @property {string} cached
 * @property {string} recomputed
 * @property {string} gain by how much the cache is less, or ""
 */

/**
 * The table: every measure with the cache and without.
 * @param {GenerationStep[]} steps
 * @param {number} layers
 * @returns {Measurement[]}
 */
export function measurements(steps, layers) {
  const computed = sumOf(steps, "computed");
  const keys = sumOf(steps, "keys_read");
  /**
   * @param {string} title
   * @param {BothWays} both
   * @param {(n: number) => string} say
   */
  const row = (title, { cached, recomputed }, say) => ({
    title,
    cached: say(cached),
    recomputed: say(recomputed),
    gain: gainOf(cached, recomputed),
  });
  return [
    row("Tokens × layers computed", times(computed, layers), count),
    row("Keys read, all layers and heads", keys, count),
    row("Time per token (median)", medianOf(steps, "seconds"), milliseconds),
    row("Time for the first token, with the prompt", steps[0].seconds, milliseconds),
    row("Cache size", { cached: last(steps).cache_bytes, recomputed: 0 }, (n) => (n ? bytes(n) : "none")),
  ];
}

/**
 * @param {BothWays} both
 * @param {number} factor
 */
const times = ({ cached, recomputed }, factor) => ({
  cached: cached * factor,
  recomputed: recomputed * factor,
});

/**
 * @param {GenerationStep[]} steps
 * @param {Measured} name
 * @returns {BothWays}
 */
function sumOf(steps, name) {
  return steps.reduce(
    (sum, step) => ({
      cached: sum.cached + step[name].cached,
      recomputed: sum.recomputed + step[name].recomputed,
    }),
    { cached: 0, recomputed: 0 },
  );
}

/**
 * The median over the steps but the first, which reads the whole prompt.
 * @param {GenerationStep[]} steps
 * @param {Measured} name
 * @returns {BothWays}
 */
export function medianOf(steps, name) {
  const later = steps.length > 1 ? steps.slice(1) : steps;
  /** @param {keyof BothWays} way */
  const middle = (way) => {
    const sorted = later.map((step) => step[name][way]).sort((a, b) => a - b);
    return sorted[Math.floor(sorted.length / 2)];
  };
  return { cached: middle("cached"), recomputed: middle("recomputed") };
}

/**
 * "12× less", or "" if it is not.
 * @param {number} cached
 * @param {number} recomputed
 */
export function gainOf(cached, recomputed) {
  const ratio = recomputed / cached;
  return cached > 0 && recomputed > 0 && ratio >= 1.05 ? `${ratio.toFixed(ratio < 10 ? 1 : 0)}× less` : "";
}

/**
 * How closely the outputs with and without the cache agree, as a sentence.
 * @param {GenerationStep[]} steps
 */
export function agreement(steps) {
  const same = steps.filter((step) => step.same).length;
  const apart = Math.max(...steps.map((step) => step.difference));
  const often = same === steps.length ? "in every step" : `in ${same} of ${steps.length} steps`;
  return `The logits differ by at most ${apart.toExponential(1)}. With and without the cache, the model chooses the same token ${often}.`;
}

/** @param {BothWays} seconds */
export function bothTimes({ cached, recomputed }) {
  return `${milliseconds(cached)} with the cache, ${milliseconds(recomputed)} without`;
}

/**
 * The time for each token, as a chart.
 * @param {GenerationStep[]} steps
 * @returns {ChartData}
 */
export function timeChart(steps) {
  /**
   * @param {keyof BothWays} way
   * @returns {[number, number][]}
   */
  const points = (way) => steps.map((step) => [step.position, step.seconds[way] * 1000]);
  const high = Math.max(...steps.flatMap((step) => [step.seconds.cached, step.seconds.recomputed])) * 1000;
  const first = steps[0].position;
  return {
    label: `Time per token; for the last one ${bothTimes(last(steps).seconds)}`,
    x: {
      title: "tokens before this one",
      low: first,
      high: Math.max(last(steps).position, first + 1),
      say: (x) => (Number.isInteger(x) ? String(x) : ""),
    },
    y: { title: "milliseconds", low: 0, high: high * 1.05, say: String },
    series: [
      { name: "without", kind: "other", points: points("recomputed") },
      { name: "with", kind: "own", points: points("cached") },
    ],
  };
}
