// @ts-check
// The forward pass of a GPT, from token ids to the logits of the next token, with a KV cache.
// It computes what `regard.gpt.GPT` does, and reads every size and choice from the same config.

import { LayerAttention } from "./attention.js";
import { activate, layerNorm, rmsNorm, rotaryTable, rotate } from "./functions.js";
import { multiply } from "./products.js";

const CHUNK = 32; // tokens that go through a layer at a time

/** What a run reports beside its result. */
const NOTHING = {
  /** @type {Cut[]} */
  cuts: [],
  pause: async () => {},
  tell: (/** @type {number} */ _layer, /** @type {number} */ _share) => {},
  /** @type {LayerNote | null} */
  note: null,
};

/** The keys and values of all layers, of the tokens that the model has read. */
export class Cache {
  /**
   * @param {ModelConfig} config
   * @param {number} capacity the most tokens
   */
  constructor({ num_layers, num_kv_heads, head_dim }, capacity) {
    const size = num_kv_heads * head_dim * capacity;
    this.length = 0;
    /** @type {LayerCache[]} */
    this.layers = Array.from({ length: num_layers }, () => ({
      capacity,
      k: new Float32Array(size),
      v: new Float32Array(size),
    }));
  }
}

export class LanguageModel {
  /**
   * @param {ModelConfig} config
   * @param {ModelWeights} weights
   */
  constructor(config, weights) {
    this.config = config;
    this.weights = weights;
    const { num_heads: H, num_kv_heads: G, head_dim: D, d_model, intermediate_size: inner } = config;
    this.attention = new LayerAttention(config, CHUNK);
    this.rotary = config.positions === "rotary" ? rotaryTable(config, config.context_length) : null;
    const wide = config.activation === "swiglu" ? 2 * inner : inner;
    const matrix = (/** @type {number} */ step) => ({ data: new Float64Array(CHUNK * step), at: 0, step });
    this.normed = matrix(d_model);
    this.qkv = matrix((H + 2 * G) * D);
    this.heads = matrix(H * D);
    this.added = matrix(d_model);
    this.inner = matrix(wide);
  }

  /**
   * The hidden states after the final norm, (T, d_model), of tokens that continue those in the cache.
   * @param {ArrayLike<number>} ids
   * @param {Cache} cache
   * @param {Partial<typeof NOTHING>} options
   * @returns {Promise<WideMatrix>}
   */
  async states(ids, cache, options = {}) {
    const { cuts, pause, tell, note } = { ...NOTHING, ...options };
    const x = this.embed(ids, cache.length);
    for (let layer = 0; layer < this.config.num_layers; layer++) {
      const limits = this.limits(layer, cuts);
      for (let row = 0; row < ids.length; row += CHUNK) {
        const rows = Math.min(CHUNK, ids.length - row);
        tell(layer, row / ids.length);
        const first = cache.length + row;
        const step = { layer, x, row, rows, first, cache: cache.layers[layer], limits, note };
        this.addAttention(step);
        this.addFeedForward(step);
        await pause();
      }
    }
    cache.length += ids.length;
    for (let row = 0; row < ids.length; row++) this.norm(this.weights.norm, x, row, x, row);
    return x;
  }

  /**
   * Logits (rows, V) from hidden states, into `out`.
   * @param {WideMatrix} states
   * @param {number} row the first of them
   * @param {number} rows
   * @param {WideMatrix} out
   */
  logits(states, row, rows, out) {
    const { d_model, vocab_size } = this.config;
    const from = { ...states, at: states.at + row * states.step };
    multiply(from, { data: this.weights.unembedding, at: 0, step: d_model }, out, rows, vocab_size, d_model);
  }

  /**
   * What the cuts and the window of a layer leave.
   * @param {number} layer
   * @param {Cut[]} cuts
   * @returns {LayerLimits}
   */
  limits(layer, cuts) {
    const own = cuts.filter((cut) => cut.layer === String(layer));
    return {
      window: this.config.windows[layer],
      edges: own.filter((cut) => cut.kind === "edges"),
      heads: new Set(own.filter((cut) => cut.kind === "head").map(({ head }) => head)),
    };
  }

  /**
   * The residual stream before the first layer.
   * @param {ArrayLike<number>} ids
   * @param {number} first position
   * @returns {WideMatrix}
   */
  embed(ids, first) {
    const { d_model: step } = this.config;
    const { tokens, positions } = this.weights;
    const data = new Float64Array(ids.length * step);
    for (let row = 0; row < ids.length; row++) {
      for (let i = 0; i < step; i++) {
        const place = positions ? positions[(first + row) * step + i] : 0;
        data[row * step + i] = tokens[ids[row] * step + i] + place;
      }
    }
    return { data, at: 0, step };
  }

  /**
   * @param {Norm} norm
   * @param {WideMatrix} x
   * @param {number} row
   * @param {WideMatrix} y
   * @param {number} to
   */
  norm(norm, x, row, y, to) {
    const { d_model, norm: kind, norm_eps } = this.config;
    const [from, at] = [x.at + row * x.step, y.at + to * y.step];
    const [source, target] = [x.data.subarray(from, from + d_model), y.data.subarray(at, at + d_model)];
    if (kind === "rms") rmsNorm(source, target, norm.weight, norm_eps);
    else layerNorm(source, target, norm, norm_eps);
  }

  /**
   * Adds the attention's output to some rows of the residual stream; their keys and values go into the cache.
   * @param {LayerStep} step
   */
  addAttention(step) {
    const { layer, x, row, rows, note } = step;
    const { d_model, num_heads: H, head_dim: D } = this.config;
    const weights = this.weights.layers[layer];
    for (let n = 0; n < rows; n++) this.norm(weights.attentionNorm, x, row + n, this.normed, n);
    linear(this.normed, weights.qkv, this.qkv, rows, this.qkv.step, d_model);
    this.place(step, weights);
    note?.queries?.(layer, row, rows, this.qkv);
    const { attention, heads, added } = this;
    attention.attend(step, this.qkv, heads, (...one) => note?.row?.(layer, row, ...one));
    note?.outputs(layer, row, rows, heads);
    linear(heads, weights.out, added, rows, d_model, H * D);
    note?.added?.(layer, false, added);
    add(x, row, added, rows, d_model);
  }

  /**
   * Norms and rotates queries and keys where the model does, and puts keys and values into the cache.
   * @param {LayerStep} step
   * @param {LayerWeights} weights
   */
  place({ first, rows, cache: { k, v, capacity } }, { queryNorm, keyNorm }) {
    const { num_heads: H, num_kv_heads: G, head_dim: D, norm_eps } = this.config;
    const { data, step } = this.qkv;
    for (let row = 0; row < rows; row++) {
      for (let head = 0; head < H + G; head++) {
        const at = row * step + head * D;
        const vector = data.subarray(at, at + D);
        const norm = head < H ? queryNorm : keyNorm;
        if (norm) rmsNorm(vector, vector, norm, norm_eps);
        if (this.rotary) rotate(vector, this.rotary, first + row);
      }
      for (let g = 0; g < G; g++) {
        const [key, value] = [row * step + (H + g) * D, row * step + (H + G + g) * D];
        for (let d = 0; d < D; d++) {
          k[(g * capacity + first + row) * D + d] = data[key + d];
          v[(g * D + d) * capacity + first + row] = data[value + d];
        }
      }
    }
  }

  /**
   * Adds the MLP's output to some rows of the residual stream.
   * @param {LayerStep} step
   */
  addFeedForward({ layer, x, row, rows, note }) {
    const { d_model, intermediate_size, activation } = this.config;
    const weights = this.weights.layers[layer];
    for (let n = 0; n < rows; n++) this.norm(weights.feedForwardNorm, x, row + n, this.normed, n);
    linear(this.normed, weights.up, this.inner, rows, this.inner.step, d_model);
    for (let n = 0; n < rows; n++)
      activate(activation, this.inner.data.subarray(n * this.inner.step), intermediate_size);
    linear(this.inner, weights.down, this.added, rows, d_model, intermediate_size);
    note?.added?.(layer, true, this.added);
    add(x, row, this.added, rows, d_model);
  }
}

/**
 * y = x · weightᵀ + bias, for some rows.
 * @param {WideMatrix} x
 * @param {Linear} map
 * @param {WideMatrix} y
 * @param {number} rows
 * @param {number} columns
 * @param {number} depth
 */
function linear(x, { weight, bias }, y, rows, columns, depth) {
  multiply(x, { data: weight, at: 0, step: depth }, y, rows, columns, depth);
  if (!bias) return;
  for (let row = 0; row < rows; row++) {
    for (let i = 0; i < columns; i++) y.data[y.at + row * y.step + i] += bias[i];
  }
}

/**
 * @param {WideMatrix} x
 * @param {number} row the first row of x that is added to
 * @param {WideMatrix} added
 * @param {number} rows
 * @param {number} width
 */
function add(x, row, added, rows, width) {
  for (let n = 0; n < rows; n++) {
    const [to, from] = [x.at + (row + n) * x.step, added.at + n * added.step];
    for (let i = 0; i < width; i++) x.data[to + i] += added.data[from + i];
  }
}
