// @ts-check
// The attention of one layer: a few queries at a time against all keys in the cache that they see.

import { multiply } from "./products.js";

/** The attention of a layer's heads; its scratch memory is used again for every layer. */
export class LayerAttention {
  /**
   * @param {ModelConfig} config
   * @param {number} rows the most queries at a time
   */
  constructor({ num_heads, num_kv_heads, head_dim }, rows) {
    this.heads = num_heads;
    this.group = num_heads / num_kv_heads;
    this.width = head_dim;
    this.scale = head_dim ** -0.5;
    this.rows = rows;
    this.weights = new Float64Array(0); // rows · capacity, of one head
  }

  /**
   * The outputs of all heads for some queries, whose keys are in the cache already.
   * @param {LayerStep} step
   * @param {WideMatrix} q (rows, H · D)
   * @param {WideMatrix} output (rows, H · D)
   * @param {(row: number, head: number, lse: number, weights: Float64Array, at: number) => void} note
   */
  attend({ first, rows, cache, limits }, q, output, note) {
    const { width: D } = this;
    const { capacity } = cache;
    const keys = first + rows; // no query sees more
    if (this.weights.length < this.rows * capacity) this.weights = new Float64Array(this.rows * capacity);
    const weights = { data: this.weights, at: 0, step: keys };
    for (let head = 0; head < this.heads; head++) {
      const g = Math.floor(head / this.group);
      const own = { ...q, at: q.at + head * D };
      multiply(own, { data: cache.k, at: g * capacity * D, step: D }, weights, rows, keys, D);
      for (let row = 0; row < rows; row++) {
        const stretches = visibleKeys(limits.window, limits.edges, head, first + row);
        const lse = softmax(this.weights, row * keys, keys, stretches, this.scale);
        note(row, head, lse, this.weights, row * keys);
      }
      const to = { ...output, at: output.at + head * D };
      if (limits.heads.has(head)) clear(to, rows, D);
      else multiply(weights, { data: cache.v, at: g * D * capacity, step: capacity }, to, rows, D, keys);
    }
  }
}

/**
 * A row of products becomes weights: those of visible keys sum to 1, all others are 0.
 * @param {Float64Array} row
 * @param {number} at
 * @param {number} keys
 * @param {number[]} stretches of visible keys
 * @param {number} scale
 * @returns {number} the log-sum-exp of the visible scores
 */
function softmax(row, at, keys, stretches, scale) {
  let most = -Infinity;
  for (let n = 0; n < stretches.length; n += 2) {
    for (let j = at + stretches[n]; j < at + stretches[n + 1]; j++) if (row[j] > most) most = row[j];
  }
  let sum = 0;
  let done = at;
  for (let n = 0; n < stretches.length; n += 2) {
    row.fill(0, done, at + stretches[n]);
    done = at + stretches[n + 1];
    for (let j = at + stretches[n]; j < done; j++) sum += row[j] = Math.exp(scale * (row[j] - most));
  }
  row.fill(0, done, at + keys);
  const factor = sum > 0 ? 1 / sum : 0;
  for (let j = at; j < done; j++) row[j] *= factor;
  return scale * most + Math.log(sum);
}

/**
 * @param {WideMatrix} matrix
 * @param {number} rows
 * @param {number} width
 */
function clear({ data, at, step }, rows, width) {
  for (let row = 0; row < rows; row++) data.fill(0, at + row * step, at + row * step + width);
}

/**
 * The stretches of keys that a query sees, one after another: [from, before, from, before …].
 * @param {number | null} window latest keys, the query's own among them
 * @param {EdgeCut[]} cuts of the layer
 * @param {number} head
 * @param {number} query
 */
export function visibleKeys(window, cuts, head, query) {
  let stretches = [window === null ? 0 : Math.max(0, query + 1 - window), query + 1];
  for (const { head: own, queries, keys } of cuts) {
    if ((own !== null && own !== head) || query < queries[0] || query >= queries[1]) continue;
    stretches = without(stretches, keys[0], keys[1]);
  }
  return stretches;
}

/**
 * Stretches less the keys `first` to before `end`.
 * @param {number[]} stretches
 * @param {number} first
 * @param {number} end
 */
function without(stretches, first, end) {
  const left = [];
  for (let n = 0; n < stretches.length; n += 2) {
    const [from, to] = [stretches[n], stretches[n + 1]];
    if (from < Math.min(to, first)) left.push(from, Math.min(to, first));
    if (Math.max(from, end) < to) left.push(Math.max(from, end), to);
  }
  return left;
}

/**
 * The same for T queries as the arrays of a mask: of one head if all heads see alike, else of each.
 * @param {number | null} window
 * @param {EdgeCut[]} cuts of the layer
 * @param {number} heads
 * @param {number} T
 */
export function maskArrays(window, cuts, heads, T) {
  const alike = cuts.every(({ head }) => head === null);
  const offsets = [0];
  /** @type {number[]} */
  const ranges = [];
  for (let head = 0; head < (alike ? 1 : heads); head++) {
    for (let query = 0; query < T; query++) {
      for (const edge of visibleKeys(window, cuts, head, query)) ranges.push(edge);
      offsets.push(ranges.length / 2);
    }
  }
  return { offsets: Uint32Array.from(offsets), ranges: Uint32Array.from(ranges) };
}
