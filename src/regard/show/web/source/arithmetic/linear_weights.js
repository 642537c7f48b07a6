// @ts-check
// The weights of a linear layer, W_ts = β_s k_s·u, where u starts at q_t and goes back by u ← e^{g_s} (u − β_s k_s k_s·u),
// without the second part unless the layer has a delta rule. Python's `recurrence.py` computes the same in chunks.

import { HeadMap } from "./weights.js";

/** One head of a linear layer; `LinearArrays` in `types.d.ts` says what its arrays are. */
export class LinearHead extends HeadMap {
  signed = true;

  /** @param {LinearArrays} parts */
  constructor(parts) {
    super(parts);
    this.q = Float64Array.from(parts.q);
    this.k = Float64Array.from(parts.k);
    this.kept = Float64Array.from(parts.decay, Math.exp); // what a token leaves of the state before it
    this.beta = parts.beta;
    this.skip = parts.skip;
    this.deltaRule = parts.deltaRule;
    this.byChannel = parts.decay.length > this.S;
  }

  /**
   * Goes back from query i: the keys after `to` change what is left of it, too.
   * @type {HeadMap["weigh"]}
   */
  weigh(i, from, to, out) {
    const { k, D, kept, beta } = this;
    const position = i + this.S - this.T;
    const u = this.q.slice(position * D, (position + 1) * D);
    let factor = 1; // of u, as long as all channels decay alike
    out.fill(0, from, to);
    for (let s = position; s >= from && factor; s--) {
      const product = dot(k, s * D, u, D);
      if (s < to) out[s] = beta[s] * factor * product + (s === position ? this.skip : 0);
      if (this.deltaRule) add(u, -beta[s] * product, k, s * D, D);
      if (this.byChannel) for (let d = 0; d < D; d++) u[d] *= kept[s * D + d];
      else factor *= kept[s];
    }
  }

  /**
   * Goes on from key j, as the state does.
   * @type {HeadMap["column"]}
   */
  column(j) {
    const { q, k, D, S, T, kept, beta } = this;
    const out = new Float32Array(T);
    const state = new Float64Array(D);
    add(state, beta[j], k, j * D, D);
    for (let t = j; t < S; t++) {
      if (t > j) {
        for (let d = 0; d < D; d++) state[d] *= kept[this.byChannel ? t * D + d : t];
        if (this.deltaRule) add(state, -beta[t] * dot(k, t * D, state, D), k, t * D, D);
      }
      const i = t - S + T;
      if (i >= 0) out[i] = dot(q, t * D, state, D) + (t === j ? this.skip : 0);
    }
    return out;
  }
}

/**
 * The product of the D numbers from `start` on and a vector.
 * @param {Float64Array} numbers
 * @param {number} start
 * @param {Float64Array} vector
 * @param {number} D
 */
function dot(numbers, start, vector, D) {
  let sum = 0;
  for (let d = 0; d < D; d++) sum += numbers[start + d] * vector[d];
  return sum;
}

/**
 * Adds `factor` times the D numbers from `start` on to a vector.
 * @param {Float64Array} vector
 * @param {number} factor
 * @param {Float64Array} numbers
 * @param {number} start
 * @param {number} D
 */
function add(vector, factor, numbers, start, D) {
  for (let d = 0; d < D; d++) vector[d] += factor * numbers[start + d];
}
