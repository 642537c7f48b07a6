// @ts-check
// The grid of thumbnails, without its elements: how large they are, what stands over them, how keys walk.

import { absences } from "../common/layers.js";

/** @param {Pick<Layer, "heads">[]} layers */
const mostHeads = (layers) => Math.max(...layers.map((layer) => layer.heads.length));

/**
 * The grid's share of the page.
 * @param {Pick<Layer, "heads">[]} layers
 */
export function gridShare(layers) {
  return mostHeads(layers) > 9 ? "31%" : "25%";
}

/**
 * The pixels of a layer's label and of a thumbnail with which a layer stands in one line.
 * @param {Pick<Layer, "key" | "heads" | "group" | "kv_heads">[]} layers
 * @param {number} width pixels that there are
 * @param {number} marks letters of the longest mark below a layer's key
 */
export function gridSizes(layers, width, marks) {
  const gaps = Math.max(...layers.map((layer) => (layer.group > 1 ? layer.kv_heads * 4 : 0)));
  const name = Math.max(...layers.map((layer) => layer.key.length));
  const label = Math.max(36, 6.2 * marks, 7.4 * name);
  const room = width - 50 - label - gaps;
  return { label, thumb: Math.max(20, Math.min(56, Math.floor(room / mostHeads(layers)) - 4)) };
}

/**
 * Whether all layers are certified and captured: a badge's word, its sentence, and a note on what is missing.
 * @param {Pick<TextMeta, "layers" | "missing">} text
 */
export function captureSummary({ layers, missing }) {
  const uncertified = layers.filter((layer) => !layer.evidence.certified).length;
  const absent = absences(missing);
  if (uncertified) {
    const words = `${uncertified} of ${layers.length} not certified`;
    return {
      certified: false,
      words,
      text: `${uncertified} of ${layers.length} layers are not certified.`,
      absent,
    };
  }
  if (absent)
    return {
      certified: false,
      words: "Incomplete",
      text: `Every layer shown is certified. ${absent}`,
      absent,
    };
  return { certified: true, words: "Certified", text: "Every layer is certified.", absent };
}

/**
 * The head that an arrow key goes to, in the same place of the layer above or below.
 * @param {Pick<Layer, "key" | "heads">[]} layers
 * @param {Pick<State, "layer" | "head">} from
 * @param {[number, number]} move layers and heads
 */
export function headBeside(layers, { layer, head }, [down, right]) {
  /**
   * @param {number} at
   * @param {number} size
   */
  const within = (at, size) => Math.min(size - 1, Math.max(0, at));
  const y = layers.findIndex((one) => one.key === layer);
  const to = layers[within(y + down, layers.length)];
  const x = layers[y].heads.indexOf(head) + right;
  return { layer: to.key, head: to.heads[within(x, to.heads.length)] };
}

/**
 * Thumbnails less others, byte by byte: 0 where both are hidden, else 128 ± 127·√|difference of the masses|.
 * @param {Uint8Array} a
 * @param {Uint8Array} b
 */
export function pictureDifference(a, b) {
  /** @param {number} byte */
  const mass = (byte) => (Math.max(0, byte - 1) / 254) ** 2;
  return a.map((byte, n) => {
    if (byte === 0 && b[n] === 0) return 0;
    const difference = mass(byte) - mass(b[n]);
    return 128 + Math.round(127 * Math.sign(difference) * Math.sqrt(Math.abs(difference)));
  });
}
