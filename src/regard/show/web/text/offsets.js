// @ts-check
// Where a layer's queries and keys stand in the text that is written out.

import { axisOf } from "../data/tokens.js";

const AXES = /** @type {const} */ (["queries", "keys"]);

/**
 * The tokens to write for a layer, and the token at which its queries and its keys begin. If a layer attends
 * from one text to another, both are written, that of the keys first.
 * @param {Meta} meta
 * @param {number} text
 * @param {Layer} layer
 * @returns {WrittenText}
 */
export function writtenText(meta, text, layer) {
  const [queries, keys] = AXES.map((axis) => axisOf(meta, text, layer, axis));
  if (keys.tokens && queries.tokens === keys.tokens)
    return { tokens: keys.tokens, queries: queries.from, keys: keys.from };
  if (!queries.tokens && !keys.tokens && layer.stack !== "cross")
    return { tokens: numbered(layer.cols), queries: layer.cols - layer.rows, keys: 0 };
  const [a, b] = [keys.tokens ?? numbered(layer.cols), queries.tokens ?? numbered(layer.rows)];
  return { tokens: [...a, ...b], keys: keys.from, queries: a.length + queries.from, second: a.length };
}

/**
 * Stand-ins for tokens that are not known: their numbers.
 * @param {number} size
 */
function numbered(size) {
  return Array.from({ length: size }, (_, i) => ` ${i}`);
}

/**
 * @typedef {object} AxisOffsets
 * @property {number} mine the token at which the axis of the chosen token begins
 * @property {number} size the number of tokens on that axis
 * @property {number} theirs the token at which the other axis begins, which the weights belong to
 */

/**
 * The offsets of the two axes: the chosen token is a query if `looking`, else a key.
 * @param {WrittenText} written
 * @param {Pick<Layer, "rows" | "cols">} layer
 * @param {boolean} looking
 * @returns {AxisOffsets}
 */
export function axisOffsets(written, { rows, cols }, looking) {
  return looking
    ? { mine: written.queries, size: rows, theirs: written.keys }
    : { mine: written.keys, size: cols, theirs: written.queries };
}

/**
 * The place of a token on the axis of the chosen token, or -1 if the layer did not read it.
 * @param {AxisOffsets} offsets
 * @param {number} token
 */
export function indexOnAxis({ mine, size }, token) {
  const index = token - mine;
  return token >= 0 && index >= 0 && index < size ? index : -1;
}
