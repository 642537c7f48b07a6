// @ts-check
// Tokens as a reader can see them: spaces, line ends and what cannot be printed get a sign.

/** @type {Record<string, string>} */
const SIGNS = {
  " ": "·",
  "\n": "↵",
  "\r": "␍",
  "\t": "⇥",
  "\u00a0": "⍽",
  "\u2028": "↵",
  "\u2029": "↵",
};

const SPACE = "\u2005"; // a space that stays one: in words and sentences it needs no sign

/** Control, direction and invisible characters, and halves of surrogate pairs: they confuse or vanish. */
const HIDDEN = /[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Zl}\p{Zp}\u00a0 ]/gu;

/**
 * A token in full, with everything visible.
 * @param {string} token
 * @returns {string}
 */
export function visible(token) {
  if (token === "") return "∅";
  return token.replace(HIDDEN, (mark) => SIGNS[mark] ?? `\\u{${mark.codePointAt(0)?.toString(16)}}`);
}

/**
 * At most `most` characters of it, with … for what is left out.
 * @param {string} token
 * @param {number} [most]
 * @returns {string}
 */
export function short(token, most = 16) {
  const shown = visible(token.length > 400 ? token.slice(0, 400) : token);
  const letters = [...shown];
  if (letters.length <= most) return shown;
  const tail = Math.floor((most - 1) / 3);
  return `${letters.slice(0, most - 1 - tail).join("")}…${tail ? letters.slice(-tail).join("") : ""}`;
}

/**
 * The tokens of an axis of a layer ("queries" or "keys") and from which one on it goes; null if unknown.
 * @param {Meta} meta
 * @param {number} text
 * @param {Layer} layer
 * @param {Axis} axis
 * @returns {{ tokens: string[], from: number } | null}
 */
export function axisOf(meta, text, layer, axis) {
  if (layer.units) return { tokens: layer.units[axis].texts, from: layer.units[axis].from };
  const tokens = meta.texts[text][layer[`${axis}_of`]];
  const from = layer[`${axis}_from`];
  return tokens && from !== null ? { tokens, from } : null;
}

/**
 * The token at a place of one of a layer's axes, or its number if the text is unknown; words and sentences are
 * given without the spaces around them.
 * @param {Meta} meta
 * @param {number} text
 * @param {Layer} layer
 * @param {Axis} axis
 * @param {number} index
 * @returns {string}
 */
export function tokenAt(meta, text, layer, axis, index) {
  const found = axisOf(meta, text, layer, axis);
  if (!found) return `#${index}`;
  const token = found.tokens[found.from + index];
  return layer.units ? token.trim().replaceAll(" ", SPACE) || token : token;
}
