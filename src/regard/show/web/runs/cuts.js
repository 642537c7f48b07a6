// @ts-check
// Cuts as data and in words: heads and edges that an edited run leaves out. It knows neither models nor elements.

import { short } from "../data/tokens.js";

/** @typedef {(axis: Axis, index: number) => string} TokenName the token at a place of a layer's axis */

/**
 * Whether two cuts are the same.
 * @param {Cut} a
 * @param {Cut} b
 */
export function sameCut(a, b) {
  if (a.kind !== b.kind || a.layer !== b.layer || a.head !== b.head) return false;
  if (a.kind === "head" || b.kind === "head") return true;
  return [a.queries, a.keys].flat().every((place, n) => place === [b.queries, b.keys].flat()[n]);
}

/**
 * The cuts with this one, or without it if it is among them.
 * @param {Cut[]} cuts
 * @param {Cut} cut
 */
export function toggled(cuts, cut) {
  const others = cuts.filter((one) => !sameCut(one, cut));
  return others.length < cuts.length ? others : [...cuts, cut];
}

/**
 * Whether a cut goes through a cell of a head's map.
 * @param {Cut} cut
 * @param {string} layer
 * @param {number} head
 * @param {Cell} cell
 */
export function cutsCell(cut, layer, head, { row, col, size }) {
  if (cut.kind === "head" || cut.layer !== layer || (cut.head !== null && cut.head !== head)) return false;
  /** @param {[number, number]} span @param {number} first */
  const meets = ([start, end], first) => start < first + size && first < end;
  return meets(cut.queries, row) && meets(cut.keys, col);
}

/**
 * A cut in words, as in "head 5.3 cut" or "head 5.3: “ate” (7) cannot attend to “cat” (2)".
 * @param {Cut} cut
 * @param {Pick<Layer, "rows" | "cols">} layer
 * @param {TokenName} token
 */
export function cutWords(cut, { rows, cols }, token) {
  const where = cut.head === null ? `layer ${cut.layer}` : `head ${cut.layer}.${cut.head}`;
  if (cut.kind === "head") return `${where} cut`;
  const queries = covers(cut.queries, rows) ? "no token" : spanWords(cut.queries, "queries", token);
  const keys = covers(cut.keys, cols) ? "any token" : spanWords(cut.keys, "keys", token);
  return `${where}: ${queries} ${covers(cut.queries, rows) ? "can" : "cannot"} attend to ${keys}`;
}

/**
 * @param {[number, number]} span
 * @param {number} size
 */
function covers([first, end], size) {
  return first === 0 && end === size;
}

/**
 * A span of positions: its token, or its first and last token.
 * @param {[number, number]} span
 * @param {Axis} axis
 * @param {TokenName} token
 */
function spanWords([first, end], axis, token) {
  return end - first === 1 ? `“${short(token(axis, first), 12)}” (${first})` : `tokens ${first}–${end - 1}`;
}

/**
 * All cuts of a run in words, shortened for a list.
 * @param {string[]} words of each cut
 */
export function runName(words) {
  const more = words.length > 2 ? `, and ${words.length - 2} more cuts` : "";
  return `Edited run: ${words.slice(0, 2).join("; ")}${more}`;
}
