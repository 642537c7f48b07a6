// @ts-check
// What the tokens of a list are: patches of a picture, tokens with names such as CLS, or others.

/** @type {PatchLayout} of a text without pictures */
export const NO_PATCHES = { spans: [], special: [] };

/**
 * What the tokens of the list on an axis of a layer are.
 * @param {Meta} meta
 * @param {number} text
 * @param {Layer} layer
 * @param {Axis} axis
 */
export function layoutOf(meta, text, layer, axis) {
  return meta.texts[text].pictures?.layouts[layer[`${axis}_of`]] ?? NO_PATCHES;
}

/**
 * Whether a layer attends among the patches of a picture alone, so that its tokens have no order.
 * @param {Pick<Layer, "keys_of">} layer
 */
export function isTower({ keys_of }) {
  return keys_of.startsWith("patches_");
}

/**
 * Whether a text is nothing but pictures, so that there is no text to read.
 * @param {TextMeta} text
 */
export function isPictureAlone(text) {
  return Boolean(text.pictures) && text.layers.length > 0 && text.layers.every(isTower);
}

/**
 * The patch that a token of a list is, or null.
 * @param {PatchLayout} layout
 * @param {number} token
 * @returns {Patch | null}
 */
export function patchOf({ spans }, token) {
  for (const [number, { first, tokens, cols, places }] of spans.entries()) {
    if (token < first || token >= first + tokens) continue;
    const place = places ? places[token - first] : token - first;
    return { span: number, row: Math.floor(place / cols), col: place % cols };
  }
  return null;
}

/**
 * The name of a token that is a patch or has a name of its own, in few letters if it would not fit; null for others.
 * @param {PatchLayout} layout
 * @param {number} token
 * @param {string} name as it is in full
 * @param {number} most letters
 */
export function patchLabel(layout, token, name, most) {
  const patch = patchOf(layout, token);
  if (!patch && !layout.special.some(([special]) => special === token)) return null;
  if (name.length <= most) return name;
  return patch ? `r${patch.row + 1} c${patch.col + 1}` : name.replace(/^(\w{3})\w*/, "$1");
}
