// @ts-check
// The page's numbers from the file itself: q, k and lse of every layer lie in it, packed.
// What has to be computed from them is asked of a worker; the rest is read here.

import { LRU, once } from "../data/lru.js";
import { PLAIN, quantityName } from "../data/quantity.js";
import { unpackArrays, unpackJson } from "./arithmetic/packed.js";
import { namedLayer, storedAttribution } from "./arithmetic/saved_weights.js";
import { withModel } from "./live.js";
import { RemoteWeights } from "./remote_weights.js";
import { openWorkerPort } from "./worker_port.js";

const KEPT = 96; // tiles
const UNMEASURED =
  "What a smaller cache keeps was not measured on this text, since the page cannot do it: regard inspect --text does.";

/**
 * Takes the text of a block out of the page: it is needed once only.
 * @param {string} name
 */
function takeBlock(name) {
  const element = document.getElementById(name);
  if (!element) throw new Error(`The file holds no block "${name}": it may have been cut short.`);
  const text = element.textContent.trim();
  element.textContent = "";
  return text;
}

/** @returns {Promise<Source>} */
export async function openSaved() {
  const opening = openWorkerPort(); // while the data is read
  /** @type {SavedData} */
  const { meta, blocks, sinks, heads, attributions, retained, words, model } = await unpackJson(
    takeBlock("regard-data"),
  );
  const weights = opening.then((port) => {
    if (port instanceof MessagePort) keepStored(meta, blocks);
    return new RemoteWeights(port, { meta, blocks, attributions, model }, takeBlock);
  });
  /** @type {RemoteWeights["ask"]} */
  const ask = async (name, question, signal, onLine) => (await weights).ask(name, question, signal, onLine);
  /** @type {LRU<Tile>} */
  const tiles = new LRU(KEPT);
  /** @type {Map<string, Promise<Uint8Array>>} */
  const pictures = new Map(); // of a text
  /** @type {Map<string, Promise<Record<string, SurveyHead>>>} */
  const surveys = new Map(); // one at most, by layer/head
  /** @type {Map<number, Promise<PredictionArrays>>} */
  const predictions = new Map(); // of a text
  /** @param {string} name */
  const picturesOf = async (name) => (await unpackArrays(name, takeBlock(name), blocks[name])).pictures;
  /**
   * @param {number} text
   * @returns {Promise<PredictionArrays>}
   */
  const predictionsOf = (text) =>
    once(predictions, text, async () => {
      const name = `predictions-${text}`;
      return /** @type {any} */ (await unpackArrays(name, takeBlock(name), blocks[name]));
    });

  /** @type {Source} */
  const source = {
    meta,
    atOnce: 1, // there is one worker
    async thumbs(text, layer) {
      const about = namedLayer(meta, text, layer);
      const name = `thumbs-${text}`;
      const all = await once(pictures, name, () => picturesOf(name));
      const size = meta.thumb ** 2;
      let before = 0;
      for (const one of meta.texts[text].layers) {
        if (one === about) break;
        before += one.heads.length;
      }
      return {
        pictures: all.subarray(before * size, (before + about.heads.length) * size),
        sinks: sinks[text][layer],
      };
    },
    async tile(text, layer, head, z, i, j, { without = null, quantity = PLAIN, signal } = {}) {
      const key = [text, layer, head, z, i, j, without, quantityName(quantity)].join(" ");
      const known = tiles.get(key);
      if (known) return known;
      const tile = await ask("tile", { text, layer, head, z, i, j, without, quantity }, signal);
      tiles.set(key, tile);
      return tile;
    },
    row: (text, layer, head, index, quantity = PLAIN) => ask("row", { text, layer, head, index, quantity }),
    column: (text, layer, head, index, quantity = PLAIN) =>
      ask("column", { text, layer, head, index, quantity }),
    attribution: async (text, position, token) => storedAttribution(attributions[text], position, token),
    layerHeads: async (text, layer) => heads[text].filter((row) => row.layer === layer),
    steps: (text, layer, head, row) => ask("steps", { text, layer, head, row }),
    async prediction(text, position) {
      return savedPrediction(await predictionsOf(text), words[text], meta.texts[text].tokens, position);
    },
    surveyHead: async (layer, head) =>
      (await once(surveys, "survey", () => unpackJson(takeBlock("survey"))))[`${layer}/${head}`],
    cut: () => Promise.reject(new Error("A saved page has no model that could run again.")),
    remove: () => Promise.reject(new Error("A saved page keeps all of its texts.")),
    capture: () => Promise.reject(new Error("A saved page has no model that could read a text.")),
    generate: () => Promise.reject(new Error("A saved page has no model that could go on with a text.")),
    async retained(text, layer) {
      const table = retained[text]?.[layer];
      if (!table) throw new Error(UNMEASURED);
      return table;
    },
  };
  if (!model || (await opening) instanceof MessagePort) return source; // there is no worker
  return withModel(source, ask, async (text) => (await predictionsOf(text)).losses);
}

/**
 * Leaves out what only the model of a file computes: it runs in a worker, and there is none.
 * @param {Meta} meta
 * @param {Record<string, PackedField[]>} blocks
 */
function keepStored(meta, blocks) {
  for (const text of meta.texts) {
    const stored = text.layers.filter(({ block }) => blocks[block ?? ""]);
    if (stored.length === text.layers.length) continue;
    Object.assign(text, { layers: stored, removed: !stored.length, shades: ["weights"], predicted: null });
    for (const layer of stored) delete layer.values_block;
  }
}

/**
 * What the model expects after a position.
 * @param {PredictionArrays} arrays
 * @param {string[]} words the texts of the likely tokens
 * @param {string[] | null} tokens of the text
 * @param {number} position
 * @returns {Prediction}
 */
export function savedPrediction({ ids, places, probabilities, losses, ranks }, words, tokens, position) {
  const count = places.length / (losses.length + 1); // for each position
  const likeliest = Array.from({ length: count }, (_, n) => {
    const at = position * count + n;
    return { id: ids[places[at]], token: words[places[at]], probability: probabilities[at] };
  });
  const loss = losses[position];
  const known = position < losses.length && Number.isFinite(loss);
  const token = tokens?.[position + 1] ?? null;
  const next = known ? { token, probability: Math.exp(-loss), rank: ranks[position], loss } : null;
  return { position, likeliest, next };
}
