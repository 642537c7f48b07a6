// @ts-check
// Words and sentences in place of tokens. A unit is a span of tokens, and every token belongs to one.

import { joinTokens } from "./split_characters.js";

/** @type {WeakMap<number[], string[]>} */
const joined = new WeakMap(); // the texts of all units

/** @type {Record<Quantity["units"], string>} one of them in a sentence */
export const UNIT = { tokens: "token", words: "word", sentences: "sentence" };

/**
 * What a text can be read by.
 * @param {TextMeta} text
 * @returns {Quantity["units"][]}
 */
export function unitNames({ spans }) {
  return spans?.tokens ? ["tokens", "words", "sentences"] : ["tokens"];
}

/**
 * A layer whose rows and columns are units: the layer itself for tokens, and where its units are not known.
 * `unitsOf` is the text that they are taken from.
 * @param {Meta} meta
 * @param {Layer} layer
 * @param {Pick<Quantity, "units" | "unitsOf">} quantity
 */
export function inUnits(meta, layer, { units, unitsOf }) {
  if (units === "tokens") return layer;
  const queries = unitAxis(meta.texts[unitsOf], layer, "queries", units);
  const keys = unitAxis(meta.texts[unitsOf], layer, "keys", units);
  if (!queries || !keys) return layer;
  const [rows, cols] = [queries.edges.length - 1, keys.edges.length - 1];
  return { ...layer, rows, cols, units: { name: units, queries, keys } };
}

/**
 * @param {TextMeta} text
 * @param {Layer} layer
 * @param {Axis} axis
 * @param {UnitName} units
 * @returns {UnitAxis | null}
 */
function unitAxis(text, layer, axis, units) {
  const list = layer[`${axis}_of`];
  const first = layer[`${axis}_from`];
  const edges = text.spans[list]?.[units];
  const tokens = text[list];
  if (!edges || !tokens || first === null) return null;
  const texts = joined.get(edges) ?? textsOf(edges, tokens);
  joined.set(edges, texts);
  return { texts, ...edgesOn(edges, first, axis === "queries" ? layer.rows : layer.cols) };
}

/**
 * The units on an axis of `size` tokens that begins with token `first`: the first and the last one may be cut.
 * @param {number[]} edges
 * @param {number} first
 * @param {number} size
 * @returns {Pick<UnitAxis, "edges" | "from">}
 */
export function edgesOn(edges, first, size) {
  const inside = edges.filter((edge) => edge > first && edge < first + size);
  const from = edges.findLastIndex((edge) => edge <= first);
  return { edges: [first, ...inside, first + size].map((edge) => edge - first), from };
}

/**
 * The text of every unit, as its tokens write it.
 * @param {number[]} edges
 * @param {string[]} tokens
 */
function textsOf(edges, tokens) {
  return edges.slice(1).map((edge, unit) => joinTokens(tokens.slice(edges[unit], edge)));
}

/**
 * The unit of a layer's axis that holds a token of the axis; -1 for -1.
 * @param {Pick<Layer, "units">} layer
 * @param {Axis} axis
 * @param {number} token
 */
export function unitAt({ units }, axis, token) {
  if (!units || token < 0) return token;
  return units[axis].edges.findLastIndex((edge) => edge <= token);
}

/**
 * The last token of a unit of a layer's axis; -1 for -1.
 * @param {Pick<Layer, "units">} layer
 * @param {Axis} axis
 * @param {number} unit
 */
export function lastToken({ units }, axis, unit) {
  return units && unit >= 0 ? units[axis].edges[unit + 1] - 1 : unit;
}

/**
 * The first token of a unit of a layer's axis; -1 for -1.
 * @param {Pick<Layer, "units">} layer
 * @param {Axis} axis
 * @param {number} unit
 */
export function firstToken({ units }, axis, unit) {
  return units && unit >= 0 ? units[axis].edges[unit] : unit;
}
