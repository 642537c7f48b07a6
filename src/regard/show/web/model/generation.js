// @ts-check
// Continues a text token by token with a KV cache and, if asked, without one as well, and measures both.
// The lines that it tells are those of `cli/parts/model.py`, which the Write view draws.

import { Cache } from "./forward.js";
import { sampleToken } from "./predictions.js";

const MOST_PIECES = 4; // tokens that may share a character

/**
 * One run of the model on some tokens: the logits after the last, and the seconds that it took.
 * @param {LanguageModel} model
 * @param {Pause} pause
 * @param {number[]} ids
 * @param {Cache} cache
 */
async function timedLogits(model, pause, ids, cache) {
  const began = performance.now();
  let waited = 0; // for others, which is no time of the model
  const states = await model.states(ids, cache, {
    async pause() {
      const since = performance.now();
      await pause();
      waited += performance.now() - since;
    },
  });
  const { vocab_size } = model.config;
  const logits = { data: new Float64Array(vocab_size), at: 0, step: vocab_size };
  model.logits(states, ids.length - 1, 1, logits);
  return { logits: logits.data, seconds: (performance.now() - began - waited) / 1000 };
}

/**
 * Continues a prompt of at least one token with the cache; then every step is computed again without it.
 * @param {LanguageModel} model
 * @param {number[]} prompt
 * @param {Omit<GenerateQuestion, "text">} options
 * @param {{ pause: Pause, tell: Tell, texts: (ids: number[]) => string[] }} outside
 */
export async function generate(model, prompt, options, { pause, tell, texts }) {
  const { config } = model;
  const limit = Math.min(options.tokens, config.context_length - prompt.length);
  const cache = new Cache(config, prompt.length + limit);
  const ids = [...prompt];
  /** @type {Float64Array[]} */
  const steps = []; // the logits of each
  let ended = false;
  tell({ start: { tokens: texts(prompt), layers: config.num_layers } });
  while (steps.length < limit && !ended) {
    const fresh = ids.slice(cache.length);
    const { logits, seconds } = await timedLogits(model, pause, fresh, cache);
    const id = sampleToken(logits, options.temperature);
    const token = texts([...ids.slice(prompt.length), id].slice(-MOST_PIECES)).at(-1) ?? "";
    const counts = countStep(config, ids.length, fresh.length);
    const unknown = { difference: null, same: null }; // until it is computed without the cache
    tell({
      step: { token, token_id: id, ...counts, seconds: { cached: seconds, recomputed: null }, ...unknown },
    });
    ids.push(id);
    steps.push(logits);
    ended = config.eos_token_id.includes(id);
  }
  for (const [step, cached] of steps.entries()) {
    const before = ids.slice(0, prompt.length + step);
    const { logits, seconds } = await timedLogits(model, pause, before, new Cache(config, before.length));
    const same = sampleToken(logits, 0) === sampleToken(cached, 0);
    const difference = cached.reduce((most, x, n) => Math.max(most, Math.abs(x - logits[n])), 0);
    tell({ again: { step, seconds, difference, same } });
  }
  tell({ end: { why: ended ? "end" : limit === options.tokens ? "tokens" : "context" } });
}

/**
 * What a step takes, by counting.
 * @param {ModelConfig} config
 * @param {number} position the number of tokens before the new one
 * @param {number} fresh tokens that are not in the cache
 */
function countStep(config, position, fresh) {
  return {
    position,
    computed: { cached: fresh, recomputed: position },
    keys_read: {
      cached: keysRead(config, position, fresh),
      recomputed: keysRead(config, position, position),
    },
    cache_bytes: cacheBytes(config, position),
  };
}

/**
 * The keys that the last `queries` of T tokens read, over all layers and key/value heads.
 * @param {ModelConfig} config
 * @param {number} T
 * @param {number} queries
 */
function keysRead({ windows, num_kv_heads }, T, queries) {
  let count = 0;
  for (const window of windows)
    for (let position = T - queries; position < T; position++) count += Math.min(position + 1, window ?? T);
  return num_kv_heads * count;
}

/**
 * Bytes of the keys and values of T tokens, in single precision.
 * @param {ModelConfig} config
 * @param {number} T
 */
function cacheBytes({ windows, num_kv_heads, head_dim }, T) {
  const tokens = windows.map((window) => Math.min(T, window ?? T));
  return tokens.reduce((a, b) => a + b, 0) * num_kv_heads * head_dim * 2 * 4;
}
