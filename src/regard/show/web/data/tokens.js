// @ts-check
// Tokens as a reader can see them: spaces, line ends and what cannot be printed get a sign.

import { layoutOf, NO_PATCHES, patchLabel } from "./patch_layout.js";
import { settings } from "./settings.js";

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

/** Several pictures joined to one, as a family: what joins them is not named. */
const JOINED = String.raw`\p{ExtPict}[\ufe0f\u{1f3fb}-\u{1f3ff}]?(?:\u200d\p{ExtPict}[\ufe0f\u{1f3fb}-\u{1f3ff}]?)+|\p{ExtPict}\ufe0f`;

/** Control, direction and invisible characters, and halves of surrogate pairs: they confuse or vanish. */
const HIDDEN = String.raw`[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Zl}\p{Zp}\u00a0 \u034f\u115f\u1160\u3164\ufe00-\ufe0f]`;
const UNSEEN = new RegExp(`${JOINED}|${HIDDEN}`, "gu");

/**
 * A token in full, with everything visible: what nobody sees has a sign, its name or its number.
 * @param {string} token
 */
export function visible(token) {
  return token === "" ? "∅" : token.replace(UNSEEN, nameOf);
}

/**
 * The lines of a text with their spaces as they are, and all else that nobody sees made visible.
 * @param {string} text
 */
export function visibleLines(text) {
  const shown = (/** @type {string} */ part) => part && visible(part);
  return text.split("\n").map((line) => line.split(" ").map(shown).join(" "));
}

/** @param {string} mark a character, or pictures that are joined */
function nameOf(mark) {
  const code = mark.codePointAt(0) ?? 0;
  if (mark.length > (code > 0xffff ? 2 : 1)) return mark;
  if (mark in SIGNS) return SIGNS[mark];
  if (mark in settings.invisible) return `⟨${settings.invisible[mark]}⟩`;
  if (code < 0x20 || code === 0x7f) return String.fromCodePoint(0x2400 + Math.min(code, 0x21));
  return `⟨U+${code.toString(16).toUpperCase().padStart(4, "0")}⟩`;
}

/**
 * At most `most` characters of it, with … for what is left out.
 * @param {string} token
 */
export function short(token, most = 16) {
  const shown = visible(token.length > 400 ? token.slice(0, 400) : token);
  const letters = [...shown];
  if (letters.length <= most) return shown;
  const tail = Math.floor((most - 1) / 3);
  return `${letters.slice(0, most - 1 - tail).join("")}…${tail ? letters.slice(-tail).join("") : ""}`;
}

/**
 * The tokens of an axis of a layer ("queries" or "keys"), from which one on it goes, and which of them are patches.
 * @param {Meta} meta
 * @param {number} text
 * @param {Layer} layer
 * @param {Axis} axis
 * @returns {TokenAxis}
 */
export function axisOf(meta, text, layer, axis) {
  const unit = layer.units?.[axis];
  if (unit) return { tokens: unit.texts, from: unit.from, layout: NO_PATCHES, inUnits: true };
  const from = layer[`${axis}_from`];
  const tokens = meta.texts[text][layer[`${axis}_of`]];
  if (from === null || !tokens) return { tokens: null, from: 0, layout: NO_PATCHES };
  return { tokens, from, layout: layoutOf(meta, text, layer, axis) };
}

/**
 * The token at a place of an axis, or its number if the text is unknown; words and sentences are given without the
 * spaces around them.
 * @param {TokenAxis} axis
 * @param {number} index
 */
export function tokenAt({ tokens, from, inUnits }, index) {
  if (!tokens) return `#${index}`;
  const token = tokens[from + index];
  return inUnits ? token.trim().replaceAll(" ", SPACE) || token : token;
}

/**
 * The same in at most `most` letters, with everything visible.
 * @param {TokenAxis} axis
 * @param {number} index
 * @param {number} most
 */
export function labelAt(axis, index, most) {
  const token = tokenAt(axis, index);
  return patchLabel(axis.layout, axis.from + index, token, most) ?? short(token, most);
}

const RIGHT_TO_LEFT = /[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc\u{10800}-\u{10fff}\u{1e800}-\u{1efff}]/u;
const SPECIAL = /^\s*(<[^<>\s]+>|\[[A-Z]+\d*\])\s*$/; // as `text_spans.py` has it

/**
 * Whether a token is written like <s> or [CLS], and is thus no piece of the text.
 * @param {string} token
 */
export function isSpecial(token) {
  return SPECIAL.test(token);
}

export const START_MARK = "▸"; // stands for <|endoftext|>, <s>, [CLS] at the start: no text of the writer's
const START = /^(<[^<>\s]+>|\[CLS\])$/;

/**
 * Whether a token only says that a text starts.
 * @param {string} token
 * @param {number} i its number
 */
export function isStart(token, i) {
  return i === 0 && START.test(token);
}

/**
 * The direction that tokens are read in: that of their first letter.
 * @param {string[]} tokens
 */
export function directionOf(tokens) {
  const letter =
    tokens
      .filter((token) => !isSpecial(token))
      .join("")
      .match(/\p{L}/u)?.[0] ?? "";
  return RIGHT_TO_LEFT.test(letter) ? "rtl" : "ltr";
}

/**
 * A text that keeps its own direction within a sentence.
 * @param {string} text
 */
export function isolated(text) {
  return RIGHT_TO_LEFT.test(text) ? `\u2068${text}\u2069` : text;
}
