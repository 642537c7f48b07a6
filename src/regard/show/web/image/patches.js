// @ts-check
// Which token is which patch of a picture. It knows numbers and names; it does not draw.

import { layoutOf, patchLabel } from "../data/patch_layout.js";
import { axisOf, short } from "../data/tokens.js";

/**
 * The token of the patch at a place of a picture, or -1 if there is none.
 * @param {PatchLayout} layout
 * @param {Patch} patch
 */
export function tokenOfPatch({ spans }, { span: number, row, col }) {
  const span = spans[number];
  if (!span || row < 0 || col < 0 || row >= span.rows || col >= span.cols) return -1;
  const place = row * span.cols + col;
  const index = span.places ? span.places.indexOf(place) : place;
  return index < 0 || index >= span.tokens ? -1 : span.first + index;
}

/**
 * The tokens on an axis of a layer that are no patches, as places in their list: CLS, registers, or words.
 * @param {Meta} meta
 * @param {number} text
 * @param {Layer} layer
 * @param {Axis} axis
 */
export function otherTokens(meta, text, layer, axis) {
  const found = axisOf(meta, text, layer, axis);
  if (!found) return [];
  const { spans } = layoutOf(meta, text, layer, axis);
  const size = axis === "queries" ? layer.rows : layer.cols;
  /** @param {number} token */
  const isPatch = (token) => spans.some(({ first, tokens }) => token >= first && token < first + tokens);
  return Array.from({ length: size }, (_, i) => found.from + i).filter((token) => !isPatch(token));
}

/**
 * The token that is looked from while none is chosen: CLS, the middle of the picture, or the last word.
 * @param {PatchLayout} layout of the axis that a token is chosen on
 * @param {number} from the first token of the axis in its list
 * @param {number} size of the axis
 */
export function firstChoice(layout, from, size) {
  const isThere = (/** @type {number} */ token) => token >= from && token < from + size;
  const special = layout.special.find(([token]) => isThere(token));
  if (special) return special[0];
  const isText = layout.spans.reduce((sum, span) => sum + span.tokens, 0) < size;
  if (!layout.spans.length || isText) return from + size - 1;
  return middlePatch(layout);
}

/**
 * The token in the middle of the first picture; -1 without a picture.
 * @param {PatchLayout} layout
 */
export function middlePatch(layout) {
  if (!layout.spans.length) return -1;
  const { rows, cols, tokens, first } = layout.spans[0];
  const middle = tokenOfPatch(layout, { span: 0, row: Math.floor(rows / 2), col: Math.floor(cols / 2) });
  return middle >= 0 ? middle : first + Math.floor(tokens / 2); // a window elsewhere
}

/**
 * The weight at which the colours of patches end: the greatest on a patch that is not left out. Uniform attention
 * stays pale.
 * @param {Float32Array} weights
 * @param {number} from
 * @param {PatchLayout} layout
 * @param {Set<number>} without tokens that are left out
 */
export function heatTop(weights, from, { spans }, without) {
  let top = 3 / Math.max(3, weights.length);
  for (const { first, tokens } of spans)
    for (let token = first; token < first + tokens; token++)
      if (!without.has(token)) top = Math.max(top, weights[token - from] ?? 0);
  return top;
}

/**
 * The name of a token of a list, in at most so many letters.
 * @param {{ names: string[], layout: PatchLayout }} axis
 * @param {number} token
 * @param {number} most
 */
export function tokenName({ names, layout }, token, most) {
  const name = names[token] ?? `token ${token}`;
  return patchLabel(layout, token, name, most) ?? short(name, most);
}

/**
 * How the attention of a token divides between patches and everything else.
 * @param {Float32Array} weights of the list's tokens from `from` on
 * @param {number} from
 * @param {PatchLayout} layout
 * @returns {KindShare[]}
 */
export function sharesByKind(weights, from, { spans, special }) {
  /** @type {Map<string, { share: number, count: number }>} */
  const kinds = new Map();
  const named = new Map(special);
  let [total, seen] = [0, 0];
  weights.forEach((weight, i) => {
    const token = from + i;
    const isPatch = spans.some(({ first, tokens }) => token >= first && token < first + tokens);
    const name = isPatch ? "patches" : kindOf(named.get(token));
    const kind = kinds.get(name) ?? { share: 0, count: 0 };
    kinds.set(name, { share: kind.share + weight, count: kind.count + (weight > 0 ? 1 : 0) }); // 0: hidden by a mask
    total += weight;
    seen += weight > 0 ? 1 : 0;
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
