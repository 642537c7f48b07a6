// @ts-check
// What heads and MLPs add to the residual stream and, by that, to a logit (direct logit attribution): with the scale of
// the final norm held fixed, the logit is a sum over all that was added at its position.

import { multiply } from "./products.js";

/**
 * Computes one position of a text once more, from the keys and values of the tokens before it: its hidden state, the
 * residual stream before the final norm, and what was added to it.
 * @param {Reading} reading
 * @param {number} position
 */
async function addedTo({ model, ids, cuts, cache }, position) {
  const embedding = model.embed([ids[position]], position).data;
  const stream = Float64Array.from(embedding);
  /** @type {Float64Array[]} */
  const heads = []; // the outputs of each layer's heads, H · D
  /** @type {Float64Array[]} */
  const mlps = [];
  /** @type {LayerNote} */
  const note = {
    outputs: (layer, _first, _rows, { data, step }) => (heads[layer] = data.slice(0, step)),
    added(layer, isMlp, { data }) {
      stream.forEach((_, i) => (stream[i] += data[i]));
      if (isMlp) mlps[layer] = data.slice(0, stream.length);
    },
  };
  const states = await model.states([ids[position]], { ...cache, length: position }, { cuts, note });
  return { state: states.data, embedding, stream, heads, mlps };
}

/**
 * What a unit of each channel of the residual stream adds to a logit, with the scale of the final norm held fixed.
 * @param {LanguageModel} model
 * @param {Float64Array} stream
 * @param {number} token
 */
function direction({ config, weights }, stream, token) {
  const { d_model: d, norm, norm_eps } = config;
  const centre = norm === "layer" ? stream.reduce((a, b) => a + b, 0) / d : 0;
  const factor = 1 / Math.sqrt(stream.reduce((sum, x) => sum + (x - centre) ** 2, 0) / d + norm_eps);
  const along = Float64Array.from(
    { length: d },
    (_, i) => factor * weights.norm.weight[i] * weights.unembedding[token * d + i],
  );
  const mean = norm === "layer" ? along.reduce((a, b) => a + b, 0) / d : 0;
  return along.map((x) => x - mean);
}

/**
 * Where the logit of a token after a position comes from.
 * @param {Reading} reading
 * @param {number} position
 * @param {number} token
 * @returns {Promise<LogitParts>}
 */
export async function attribute(reading, position, token) {
  const { model } = reading;
  const { num_layers, num_heads: H, head_dim: D, d_model } = model.config;
  const parts = await addedTo(reading, position);
  const { unembedding } = model.weights;
  const logit = dot(parts.state, unembedding.subarray(token * d_model, (token + 1) * d_model));
  const along = direction(model, parts.stream, token);
  const directions = Array.from({ length: num_layers }, (_, layer) => throughOutput(model, layer, along));
  const heads = directions.map((all, layer) =>
    Array.from({ length: H }, (_, h) =>
      dot(all.subarray(h * D, (h + 1) * D), parts.heads[layer].subarray(h * D, (h + 1) * D)),
    ),
  );
  const mlps = parts.mlps.map((added) => dot(along, added));
  const embedding = dot(along, parts.embedding);
  const sum = [...heads.flat(), ...mlps].reduce((a, b) => a + b, embedding);
  return { logit, embedding, heads, mlps, rest: logit - sum, directions }; // the rest is what biases add
}

/**
 * A direction of the residual stream as the outputs of a layer's heads see it: Wᵀ · g, H · D.
 * @param {LanguageModel} model
 * @param {number} layer
 * @param {Float64Array} along
 */
function throughOutput({ config, weights }, layer, along) {
  const { num_heads: H, head_dim: D, d_model } = config;
  const { weight } = weights.layers[layer].out; // (d_model, H · D)
  const seen = new Float64Array(H * D);
  for (let i = 0; i < d_model; i++)
    for (let n = 0; n < H * D; n++) seen[n] += along[i] * weight[i * H * D + n];
  return seen;
}

/**
 * What each key adds to a logit for each unit of weight, (H · S).
 * @param {ModelConfig} config
 * @param {Float32Array} values (G · S · D)
 * @param {Float64Array} seen a direction as the outputs of the layer's heads see it
 */
export function logitFactors({ num_heads: H, num_kv_heads: G, head_dim: D }, values, seen) {
  const S = values.length / (G * D);
  const factors = new Float64Array(H * S);
  for (let h = 0; h < H; h++) {
    const g = Math.floor((h * G) / H);
    const own = { data: seen, at: h * D, step: D };
    multiply(own, { data: values, at: g * S * D, step: D }, { data: factors, at: h * S, step: S }, 1, S, D);
  }
  return Float32Array.from(factors);
}

/**
 * The norm of what each key's value adds to the residual stream, (H · S).
 * @param {LanguageModel} model
 * @param {number} layer
 * @param {Float32Array} values (G · S · D)
 */
export function valueNorms({ config, weights }, layer, values) {
  const { num_heads: H, num_kv_heads: G, head_dim: D, d_model } = config;
  const S = values.length / (G * D);
  const norms = new Float32Array(H * S);
  const own = { data: new Float64Array(D), at: 0, step: D };
  const added = { data: new Float64Array(d_model), at: 0, step: d_model };
  for (let h = 0; h < H; h++) {
    const g = Math.floor((h * G) / H);
    const out = { data: weights.layers[layer].out.weight, at: h * D, step: H * D };
    for (let key = 0; key < S; key++) {
      for (let d = 0; d < D; d++) own.data[d] = values[(g * S + key) * D + d];
      multiply(own, out, added, 1, d_model, D);
      norms[h * S + key] = Math.sqrt(added.data.reduce((sum, x) => sum + x * x, 0));
    }
  }
  return norms;
}

/**
 * @param {ArrayLike<number>} a
 * @param {ArrayLike<number>} b
 */
function dot(a, b) {
  let sum = 0;
  for (let i = 0; i < a.length; i++) sum += a[i] * b[i];
  return sum;
}
