// @ts-check
// The page's numbers from where they are computed on demand, through a transport: the server that the page came
// from (`http.js`) or a notebook's kernel (`notebook/kernel.js`). The latest answers are kept.

import { layerOf } from "../data/layers.js";
import { LRU } from "../data/lru.js";
import { PLAIN, quantityName } from "../data/quantity.js";
import { cellsAlong } from "../data/settings.js";
import { inUnits } from "../data/units.js";
import { TooLongError } from "./too_long.js";

const KEPT = 96; // answers

/**
 * The likeliest token need not be named.
 * @param {number} position
 * @param {number} token
 * @returns {Record<string, number>}
 */
function logitQuery(position, token) {
  return token < 0 ? { position } : { position, token };
}

/**
 * What a question says of its quantity, where that is not the weights of tokens.
 * @param {Quantity} quantity
 */
function quantityQuery({ shade, units, unitsOf, position, token }) {
  /** @type {Record<string, string | number>} */
  const query = {};
  if (shade !== PLAIN.shade) query.shade = shade;
  if (shade === "logit") Object.assign(query, logitQuery(position, token));
  if (units !== PLAIN.units) Object.assign(query, { units, units_of: unitsOf });
  return query;
}

/**
 * The pictures of a layer's heads, and each head's sink from the pairs of numbers that follow them.
 * @param {ArrayBuffer} bytes
 * @param {number} size of all pictures
 * @returns {Thumbs}
 */
function thumbsOf(bytes, size) {
  const pairs = new Float64Array(bytes, size); // a picture has a multiple of 8 bytes
  const sinks = Array.from({ length: pairs.length / 2 }, (_, h) => ({
    key: pairs[2 * h],
    share: pairs[2 * h + 1],
  }));
  return { pictures: new Uint8Array(bytes, 0, size), sinks };
}

/**
 * @param {Transport} transport
 * @param {Promise<Response>} [firstMeta] the answer to the first question, if it was asked already
 * @returns {Promise<Source>}
 */
export async function openServed({ ask, follow }, firstMeta = ask("meta", {})) {
  /** @type {LRU<any>} */
  const kept = new LRU(KEPT);
  /** @type {Map<string, Promise<any>>} */
  const asked = new Map(); // that have no answer yet
  /**
   * What was asked before, or what `make` gives; an answer that failed is asked for again. Two who want the same at
   * a time wait for one answer, unless one of them may leave.
   * @template T
   * @param {string} key
   * @param {() => Promise<T>} make
   * @param {AbortSignal} [signal]
   * @returns {Promise<T>}
   */
  const once = async (key, make, signal) => {
    const known = kept.get(key);
    if (known !== undefined) return known;
    const making = (!signal && asked.get(key)) || make();
    if (!signal) asked.set(key, making);
    try {
      const made = await making;
      kept.set(key, made);
      return made;
    } finally {
      asked.delete(key);
    }
  };
  /**
   * @param {string} path
   * @param {Record<string, string | number>} query
   * @param {AbortSignal} [signal]
   */
  const floats = async (path, query, signal) =>
    new Float32Array(await (await ask(path, query, signal)).arrayBuffer());

  /** @type {Source} */
  const source = {
    atOnce: 4, // questions that it likes to have at a time
    meta: await (await firstMeta).json(),
    thumbs: (text, layer) =>
      once(`thumbs ${text} ${layer}`, async () => {
        const bytes = await (await ask("thumbs", { text, layer })).arrayBuffer();
        return thumbsOf(bytes, layerOf(source.meta, text, layer).heads.length * source.meta.thumb ** 2);
      }),
    tile: (text, layer, head, z, i, j, { without = null, quantity = PLAIN, signal } = {}) => {
      const name = `tile ${text} ${layer} ${head} ${z} ${i} ${j} ${without} ${quantityName(quantity)}`;
      const make = async () => {
        /** @type {Record<string, string | number>} */
        const query = { text, layer, head, z, i, j, ...quantityQuery(quantity) };
        if (without !== null) query.without = without;
        const both = await floats("tile", query, signal);
        const { rows: T, cols: S } = inUnits(source.meta, layerOf(source.meta, text, layer), quantity);
        const [rows, cols] = [cellsAlong(T, z, i), cellsAlong(S, z, j)];
        return { mass: both.subarray(0, rows * cols), max: both.subarray(rows * cols), rows, cols };
      };
      return once(name, make, signal);
    },
    row: (text, layer, head, row, quantity = PLAIN) =>
      once(`row ${text} ${layer} ${head} ${row} ${quantityName(quantity)}`, () =>
        floats("row", { text, layer, head, row, ...quantityQuery(quantity) }),
      ),
    column: (text, layer, head, col, quantity = PLAIN) =>
      once(`column ${text} ${layer} ${head} ${col} ${quantityName(quantity)}`, () =>
        floats("column", { text, layer, head, col, ...quantityQuery(quantity) }),
      ),
    attribution: (text, position, token) =>
      once(`attribution ${text} ${position} ${token}`, async () =>
        (await ask("attribution", { text, ...logitQuery(position, token) })).json(),
      ),
    layerHeads: (text, layer) =>
      once(`heads ${text} ${layer}`, async () => (await ask("layer_heads", { text, layer })).json()),
    steps: (text, layer, head, row) =>
      once(`steps ${text} ${layer} ${head} ${row}`, async () =>
        (await ask("steps", { text, layer, head, row })).json(),
      ),
    retained: (text, layer) =>
      once(`retained ${text} ${layer}`, async () => (await ask("retained", { text, layer })).json()),
    prediction: (text, position) =>
      once(`prediction ${text} ${position}`, async () =>
        (await ask("prediction", { text, position })).json(),
      ),
    surveyHead: (layer, head) =>
      once(`survey ${layer} ${head}`, async () => (await ask("survey_head", { layer, head })).json()),
    async capture(text, onLine, signal, options = {}) {
      const last = await follow("capture", { text, ...options }, onLine, signal);
      if (last?.too_long) throw new TooLongError(last.too_long);
      source.meta = await (await ask("meta", {})).json();
      return last?.text ?? 0;
    },
    async cut(text, cuts, onLine, signal, random = true) {
      const last = await follow("cut", { text, cuts, random }, onLine, signal);
      source.meta = await (await ask("meta", {})).json();
      return last?.text ?? text;
    },
    async remove(text) {
      const last = await follow("remove", { text }, (/** @type {CaptureLine} */ _) => {});
      source.meta = await (await ask("meta", {})).json();
      return last?.text ?? 0;
    },
    async generate(options, onLine, signal) {
      await follow("generate", options, onLine, signal);
    },
  };
  return source;
}
