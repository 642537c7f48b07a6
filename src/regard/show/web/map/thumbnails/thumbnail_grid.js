// @ts-check
// The grid of thumbnails, without its elements: how large they are, what stands over them, how keys walk.

import { clamp } from "../../data/arrays.js";
import { absences, otherMixers } from "../../data/layers.js";

/** @param {Pick<Layer, "heads">[]} layers */
const mostHeads = (layers) => Math.max(...layers.map((layer) => layer.heads.length));

const SMALLEST = 16; // pixels of a thumbnail
const [MIDDLE, LARGEST] = [56, 112]; // that a thumbnail may have anyway, and if all layers are in view then
const GAP = 4; // between two
const NUMBERS = 24; // pixels of the numbers before the lines of a layer that has several

/**
 * The pixels of a layer's label and of a thumbnail, and the heads in one line. A layer that does not fit in one line has
 * several of the same length, so that a column stands for the same heads in every layer.
 * @param {Pick<Layer, "key" | "heads" | "group">[]} layers
 * @param {number} width pixels that there are, and
 * @param {number} height
 * @param {number} marks letters of the longest mark below a layer's key
 */
export function gridSizes(layers, width, height, marks) {
  const name = Math.max(...layers.map((layer) => layer.key.length));
  const label = Math.max(36, 6.2 * marks, 7.4 * name);
  const most = mostHeads(layers);
  /** @param {number} columns */
  const side = (columns) => Math.floor((width - 50 - label - (columns < most ? NUMBERS : 0)) / columns) - GAP;
  const fits = Array.from({ length: most }, (_, n) => most - n).filter((length) => side(length) >= SMALLEST);
  const largest = clamp(Math.floor((height - 100) / layers.length) - 8, MIDDLE, LARGEST);
  const columns = lineLength(fits, most, Math.max(...layers.map((layer) => layer.group)));
  return { label, columns, thumb: Math.max(SMALLEST, Math.min(largest, side(columns))) };
}

/**
 * How many heads a line has: all of them, or an even part that does not break up the heads that share a key/value head;
 * as many as fit, if such lines would be much shorter.
 * @param {number[]} fits lengths that fit, the longest first
 * @param {number} heads
 * @param {number} group
 */
function lineLength(fits, heads, group) {
  const longest = fits[0] ?? 1;
  const even = fits.find((n) => heads % n === 0 && (n % group === 0 || group % n === 0)) ?? 1;
  return 2 * even >= longest ? even : longest;
}

/**
 * Whether all attention is captured and certified: a badge's word, its sentence, and a note on what has no map.
 * @param {Pick<TextMeta, "layers" | "missing"> & Partial<Pick<TextMeta, "others">>} text
 */
export function captureSummary({ layers, missing, others }) {
  const uncertified = layers.filter((layer) => !layer.evidence.certified).length;
  const absent = [absences(missing), otherMixers(others)].filter(Boolean).join(" ");
  if (uncertified) {
    const words = `${uncertified} of ${layers.length} not certified`;
    return { certified: false, words, text: words.replace("not", "layers are not") + ".", absent };
  }
  const [words, text] = missing.length
    ? ["Incomplete", `Every layer shown is certified. ${absent}`]
    : ["", "Every layer is certified."];
  return { certified: !missing.length, words, text, absent };
}

/**
 * The numbers of the columns, if every layer has the same heads and they stand in one line; else none.
 * @param {Pick<Layer, "heads">[]} layers
 * @param {number} columns
 */
export function columnNumbers(layers, columns) {
  const [{ heads }] = layers;
  const same = layers.every((layer) => String(layer.heads) === String(heads));
  return same && heads.length === columns ? heads : [];
}
