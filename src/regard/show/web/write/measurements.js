// @ts-check
// What was measured while a model wrote with the cache and without it. It knows numbers, not the page.

import { last } from "../data/arrays.js";
import { bytes, count, milliseconds } from "../data/format.js";
import { plainToken } from "./prompt.js";

/** @typedef {"computed" | "keys_read"} Measured */

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
   * @param {BothTimes} both
   * @param {(n: number) => string} say
   */
  const row = (title, { cached, recomputed }, say) => ({
    title,
    cached: say(cached),
    recomputed: recomputed === null ? "not measured" : say(recomputed),
    gain: gainOf(cached, recomputed ?? 0),
  });
  return [
    row("Tokens × layers computed", times(computed, layers), count),
    row("Keys read, all layers and heads", keys, count),
    row("Time per token (median)", medianTimes(steps), milliseconds),
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
 * @returns {BothTimes}
 */
export function medianTimes(steps) {
  const later = (steps.length > 1 ? steps.slice(1) : steps).map((step) => step.seconds);
  const middle = (/** @type {(number | null)[]} */ times) => {
    const sorted = times.filter((time) => time !== null).sort((a, b) => a - b);
    return sorted[Math.floor(sorted.length / 2)] ?? null;
  };
  return {
    cached: middle(later.map((one) => one.cached)) ?? 0,
    recomputed: middle(later.map((one) => one.recomputed)),
  };
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
 * What the cache saves, as a sentence; "" if both ways were not measured.
 * @param {GenerationStep[]} steps
 * @param {number} layers
 */
export function savings(steps, layers) {
  if (!steps.length) return "";
  const [computed, , time] = measurements(steps, layers);
  if (!computed.gain) return "";
  const faster = time.gain && `, and each token took ${time.gain} time`;
  return `With its KV cache the model wrote this with ${computed.gain} computation${faster}.`;
}

/**
 * How closely the outputs with and without the cache agree, as a sentence.
 * @param {GenerationStep[]} steps
 */
export function agreement(steps) {
  const compared = steps.flatMap(({ difference, same }) =>
    difference === null ? [] : [{ difference, same }],
  );
  if (!compared.length) return "";
  const same = compared.filter((step) => step.same).length;
  const apart = Math.max(...compared.map((step) => step.difference));
  const often = same === compared.length ? "in every step" : `in ${same} of ${compared.length} steps`;
  const equal = apart ? `differ by at most ${apart.toExponential(1)}` : "are equal to the last digit";
  return `The logits ${equal}. With and without the cache, the model chooses the same token ${often}.`;
}

/** @param {BothTimes} seconds */
export function bothTimes({ cached, recomputed }) {
  const without = recomputed === null ? "" : `, ${milliseconds(recomputed)} without`;
  return `${milliseconds(cached)} with the cache${without}`;
}

/**
 * The time for each token, as a chart.
 * @param {GenerationStep[]} steps
 * @returns {ChartData}
 */
export function timeChart(steps) {
  /**
   * @param {keyof BothTimes} way
   * @returns {[number, number | null][]}
   */
  const points = (way) =>
    steps.map(({ position, seconds: { [way]: time } }) => [position, time === null ? null : time * 1000]);
  const times = steps.flatMap(({ seconds }) => [seconds.cached, seconds.recomputed ?? 0]);
  const high = Math.max(...times) * 1000;
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
    ].filter((series) => series.points.some(([, time]) => time !== null)),
  };
}

/**
 * What was measured for every generated token, as a table.
 * @param {GenerationStep[]} steps
 * @returns {TableRow[]}
 */
export function stepRows(steps) {
  if (!steps.length) throw new Error("generate some tokens first");
  const measured = /** @type {const} */ (["seconds", "computed", "keys_read"]);
  const names = measured.flatMap((name) => [`${name}_with_cache`, `${name}_without`]);
  return [
    ["position", "token", ...names, "cache_bytes", "logit_difference"],
    ...steps.map((step) => [
      step.position,
      plainToken(step.token),
      ...measured.flatMap((name) => [step[name].cached, step[name].recomputed]),
      step.cache_bytes,
      step.difference,
    ]),
  ];
}
