// @ts-check
// The page's numbers from where they are computed on demand, through a transport: the server that the page came
// from (`http.js`) or a notebook's kernel (`notebook/kernel.js`).

import { layerOf } from "../data/layers.js";
import { PLAIN } from "../data/quantity.js";
import { cellsAlong } from "../data/settings.js";
import { inUnits } from "../data/units.js";
import { makeSource } from "./page_source.js";
import { TooLongError } from "./too_long.js";

/** What the server calls a question, if not as the page does. */
const NAMES = /** @type {Record<string, string>} */ ({
  layerHeads: "layer_heads",
  surveyHead: "survey_head",
});

/**
 * A question as a query: a quantity only where it is not the weights of tokens. The likeliest token need not be named.
 * @param {string} name
 * @param {any} question
 * @returns {Record<string, string | number>}
 */
function queryOf(name, { quantity = PLAIN, index, ...question }) {
  const { shade, units, unitsOf, position, token } = quantity;
  if (index !== undefined) question[name === "column" ? "col" : "row"] = index;
  if (shade !== PLAIN.shade) question.shade = shade;
  if (shade === "logit") Object.assign(question, { position, token });
  if (units !== PLAIN.units) Object.assign(question, { units, units_of: unitsOf });
  if (question.token < 0) delete question.token;
  return question;
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
 * @param {Meta} meta
 * @param {TileQuestion} question
 * @param {Float32Array} both
 * @returns {Tile}
 */
function tileOf(meta, { text, layer, z, i, j, quantity }, both) {
  const { rows: T, cols: S } = inUnits(meta, layerOf(meta, text, layer), quantity);
  const [rows, cols] = [cellsAlong(T, z, i), cellsAlong(S, z, j)];
  return { mass: both.subarray(0, rows * cols), max: both.subarray(rows * cols), rows, cols };
}

/**
 * @param {Transport} transport
 * @param {Promise<Response>} [firstMeta] the answer to the first question, if it was asked already
 * @returns {Promise<Source>}
 */
export async function openServed({ ask: request, follow }, firstMeta = request("meta", {})) {
  /** @type {AskPage} */
  const ask = async (name, question, signal) => {
    const response = await request(NAMES[name] ?? name, queryOf(name, question), signal);
    if (!["tile", "row", "column", "thumbs"].includes(name)) return response.json();
    const bytes = await response.arrayBuffer();
    const { meta } = source;
    if (name === "thumbs") {
      const { heads } = layerOf(meta, question.text, question.layer);
      return thumbsOf(bytes, heads.length * meta.thumb ** 2);
    }
    const numbers = new Float32Array(bytes);
    return name === "tile" ? tileOf(meta, question, numbers) : numbers;
  };
  /**
   * Work of the model, after which there are other texts.
   * @param {string} name
   * @param {object} body
   * @param {(line: CaptureLine) => void} [onLine]
   * @param {AbortSignal} [signal]
   */
  const work = async (name, body, onLine = () => {}, signal) => {
    const last = await follow(name, body, onLine, signal);
    if (last?.too_long) throw new TooLongError(last.too_long);
    source.meta = await (await request("meta", {})).json();
    return last?.text ?? 0;
  };
  const source = makeSource(await (await firstMeta).json(), 4, ask, {
    capture: (text, onLine, signal, options = {}) => work("capture", { text, ...options }, onLine, signal),
    cut: (text, cuts, onLine, signal, random = true) => work("cut", { text, cuts, random }, onLine, signal),
    remove: (text) => work("remove", { text }),
    async generate(options, onLine, signal) {
      await follow("generate", options, onLine, signal);
    },
  });
  return source;
}
