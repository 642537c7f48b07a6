// @ts-check
// The model reads a text, and everything that its maps are computed from is kept: q, k, lse and v of every layer.

import { Cache } from "./forward.js";
import { Predictions } from "./predictions.js";
import { maskArrays } from "./attention.js";

const LOGITS = 32; // positions whose logits are computed at a time
const COMPARED = 16; // rows of a layer whose output is compared with what its map gives

/** What a run on a text leaves. */
export class Reading {
  /**
   * @param {LanguageModel} model
   * @param {ArrayLike<number>} ids
   * @param {Cut[]} cuts
   * @param {number} likeliest
   */
  constructor(model, ids, cuts, likeliest) {
    const { num_layers, num_heads: H, head_dim: D } = model.config;
    const T = ids.length;
    this.model = model;
    this.ids = ids;
    this.cuts = cuts;
    this.cache = new Cache(model.config, T);
    this.predictions = new Predictions(ids, likeliest);
    /** @type {LayerRecord[]} */
    this.records = Array.from({ length: num_layers }, () => ({
      q: new Float32Array(H * T * D),
      lse: new Float64Array(H * T),
      sampled: [],
    }));
    const count = Math.min(T, COMPARED);
    this.compared = new Set(
      Array.from({ length: count }, (_, n) => Math.round((n * (T - 1)) / Math.max(1, count - 1))),
    );
  }

  /**
   * Runs the model on the whole text.
   * @param {Pause} pause
   * @param {Tell} tell
   */
  async run(pause, tell) {
    const { cuts } = this;
    const { num_layers: of, d_model: d, vocab_size: step } = this.model.config;
    // Multiplications a token and channel: those of the layers, of all with those of the logits.
    const work = of * (12 * d + this.ids.length);
    const inLayers = work / (work + step);
    const report = (/** @type {number} */ layer, /** @type {number} */ share) =>
      tell({ progress: { doing: "reading", done: layer, of, share: (inLayers * (layer + share)) / of } });
    const states = await this.model.states(this.ids, this.cache, { cuts, pause, tell: report, note: this });
    const logits = { data: new Float64Array(LOGITS * step), at: 0, step };
    for (let row = 0; row < this.ids.length; row += LOGITS) {
      const rows = Math.min(LOGITS, this.ids.length - row);
      this.model.logits(states, row, rows, logits);
      this.predictions.take(row, rows, logits);
      const share = inLayers + (1 - inLayers) * ((row + rows) / this.ids.length);
      tell({ progress: { doing: "reading", done: of, of, share } });
      await pause();
    }
  }

  /** @type {NonNullable<LayerNote["queries"]>} */
  queries(layer, first, rows, { data, at, step }) {
    const { num_heads: H, head_dim: D } = this.model.config;
    const { q } = this.records[layer];
    for (let row = 0; row < rows; row++) {
      for (let head = 0; head < H; head++) {
        const from = at + row * step + head * D;
        q.set(data.subarray(from, from + D), (head * this.ids.length + first + row) * D);
      }
    }
  }

  /** @type {NonNullable<LayerNote["row"]>} */
  row(layer, first, row, head, lse) {
    this.records[layer].lse[head * this.ids.length + first + row] = lse;
  }

  /** @type {LayerNote["outputs"]} */
  outputs(layer, first, rows, { data, at, step }) {
    for (let row = 0; row < rows; row++) {
      if (!this.compared.has(first + row)) continue;
      const output = data.slice(at + row * step, at + (row + 1) * step);
      this.records[layer].sampled.push({ row: first + row, output });
    }
  }

  /**
   * The arrays that a layer's maps are computed from.
   * @param {number} layer
   * @returns {Pick<Arrays, "q" | "k" | "mean" | "lse">}
   */
  maps(layer) {
    const { num_kv_heads: G, head_dim: D } = this.model.config;
    const { q, lse } = this.records[layer];
    return { q, k: this.cache.layers[layer].k, mean: new Float32Array(G * D), lse };
  }

  /**
   * The values of a layer, token by token.
   * @param {number} layer
   * @returns {Float32Array} (G · T · D)
   */
  values(layer) {
    const { num_kv_heads: G, head_dim: D } = this.model.config;
    const T = this.ids.length;
    const { v } = this.cache.layers[layer];
    const values = new Float32Array(G * T * D);
    for (let g = 0; g < G; g++)
      for (let d = 0; d < D; d++)
        for (let t = 0; t < T; t++) values[(g * T + t) * D + d] = v[(g * D + d) * T + t];
    return values;
  }

  /** @param {number} layer */
  mask(layer) {
    const { window, edges } = this.model.limits(layer, this.cuts);
    return maskArrays(window, edges, this.model.config.num_heads, this.ids.length);
  }
}
