// @ts-check
// A model's weights by their places in it, from the tensors that a file holds.

/**
 * @param {ModelConfig} config
 * @param {Record<string, Float32Array>} tensors by their names in `regard.gpt.GPT`
 * @returns {ModelWeights}
 */
export function arrangeWeights(config, tensors) {
  /** @param {string} name */
  const tensor = (name) => {
    if (!tensors[name]) throw new Error(`The model in this file has no tensor "${name}".`);
    return tensors[name];
  };
  const optional = (/** @type {string} */ name) => tensors[name] ?? null;
  /** @param {string} name */
  const linear = (name) => ({ weight: tensor(`${name}.weight`), bias: optional(`${name}.bias`) });
  const layers = Array.from({ length: config.num_layers }, (_, layer) => {
    const block = `blocks.${layer}`;
    return {
      attentionNorm: linear(`${block}.attention_norm`),
      qkv: linear(`${block}.attention.qkv`),
      queryNorm: config.qk_norm ? tensor(`${block}.attention.query_norm.weight`) : null,
      keyNorm: config.qk_norm ? tensor(`${block}.attention.key_norm.weight`) : null,
      out: linear(`${block}.attention.out`),
      feedForwardNorm: linear(`${block}.feed_forward_norm`),
      up: linear(`${block}.feed_forward.up`),
      down: linear(`${block}.feed_forward.down`),
    };
  });
  const tokens = tensor("token_embedding.weight");
  return {
    tokens,
    positions: config.positions === "learned" ? tensor("position_embedding.weight") : null,
    layers,
    norm: linear("norm"),
    unembedding: optional("head.weight") ?? tokens, // tied where it has none of its own
  };
}
