// @ts-check
// How the attention of a token divides among the patches of a picture and the tokens beside them. It knows numbers and
// names; it does not draw.

import { patchOf } from "../data/patch_layout.js";

/**
 * How the attention of a token divides between patches and everything else.
 * @param {Float32Array} weights of the list's tokens from `from` on
 * @param {number} from
 * @param {PatchLayout} layout
 * @returns {KindShare[]}
 */
export function sharesByKind(weights, from, layout) {
  /** @type {Map<string, { share: number, count: number }>} */
  const kinds = new Map();
  const named = new Map(layout.special);
  let [total, seen] = [0, 0];
  weights.forEach((weight, i) => {
    const name = patchOf(layout, from + i) ? "patches" : kindOf(named.get(from + i));
    const { share, count } = kinds.get(name) ?? { share: 0, count: 0 };
    const isSeen = weight > 0 ? 1 : 0; // 0: hidden by a mask
    kinds.set(name, { share: share + weight, count: count + isSeen });
    total += weight;
    seen += isSeen;
  });
  return [...kinds].map(([name, { share, count }]) => ({
    name,
    share: total ? share / total : 0,
    uniform: seen ? count / seen : 0,
  }));
}

/**
 * What kind of token a name is of: registers count together.
 * @param {string | undefined} name
 */
export function kindOf(name) {
  if (name === undefined) return "text";
  return name.startsWith("register ") ? "registers" : name;
}

/**
 * The patches that receive far more than others, of the heads that are shown.
 * @param {Pick<HeadScores, "head" | "outliers">[]} heads of a layer
 * @param {number} from the first token of the keys in their list
 * @param {number} [head] the number of the head; all of them without it
 * @returns {Map<number, number>} tokens with their mean weights
 */
export function outlierTokens(heads, from, head) {
  const shown = head === undefined ? heads : heads.filter((one) => one.head === head);
  /** @type {Map<number, number>} */
  const found = new Map();
  for (const { outliers = [] } of shown)
    for (const [key, share] of outliers) found.set(from + key, Math.max(found.get(from + key) ?? 0, share));
  return found;
}
