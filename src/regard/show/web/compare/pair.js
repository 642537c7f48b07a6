// @ts-check
// The heads that are compared, as they stand in the address: pair=text/layer/head,text/layer/head.

import { known } from "../data/arrays.js";
import { layerOf } from "../data/layers.js";
import { isSameShape } from "../data/quantity.js";

/** @param {HeadPlace} head */
const written = ({ text, layer, head }) => `${text}/${layer}/${head}`;

/** @param {HeadPlace[]} pair */
export function formatPair(pair) {
  return pair.map(written).join(",");
}

/**
 * The heads that an address names, at most two; those that do not exist are left out.
 * @param {Meta} meta
 * @param {string} address
 */
export function parsePair(meta, address) {
  /**
   * @param {string} name
   * @returns {HeadPlace | null}
   */
  const read = (name) => {
    const [text, layer, head] = name.split("/");
    const found = meta.texts[Number(text)]?.layers.find((one) => one.key === layer);
    if (!found?.heads.includes(Number(head))) return null;
    return { text: Number(text), layer, head: Number(head) };
  };
  return address.split(",").filter(Boolean).map(read).filter(known).slice(0, 2);
}

/**
 * The two heads that are compared. What an address leaves open is the chosen head, and beside it the same head of
 * another text of the same length, or else the layer's next head: so there is a difference to see.
 * @param {Meta} meta
 * @param {State} state
 */
export function pairOf(meta, { text, layer, head, pair }) {
  const [first = { text, layer, head }, second] = parsePair(meta, pair);
  return [first, second ?? otherHead(meta, first)];
}

/**
 * What a head is compared with if nothing else is asked for.
 * @param {Meta} meta
 * @param {HeadPlace} place
 * @returns {HeadPlace}
 */
function otherHead(meta, { text, layer, head }) {
  const own = layerOf(meta, text, layer);
  const other = meta.texts.findIndex(
    ({ removed, layers }, n) =>
      n !== text &&
      !removed &&
      layers.some((one) => one.key === layer && one.heads.includes(head) && isSameShape(one, own)),
  );
  if (other >= 0) return { text: other, layer, head };
  const { layers } = meta.texts[text];
  const all = layers.flatMap(({ key, heads }) => heads.map((one) => ({ text, layer: key, head: one })));
  const at = all.findIndex((one) => one.layer === layer && one.head === head);
  return all[(at + 1) % all.length];
}
