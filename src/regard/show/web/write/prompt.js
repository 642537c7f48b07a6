// @ts-check
// Text for a model to go on with, and tokens as they stand in what it writes.

import { joinTokens } from "../data/split_characters.js";
import { visibleLines } from "../data/tokens.js";

/**
 * The first sentence of a text, as a prompt.
 * @param {Pick<TextMeta, "tokens">} text
 */
export function openingSentence({ tokens }) {
  const text = joinTokens((tokens ?? []).filter((token) => !/^<[^>]*>$/.test(token))).trim();
  const end = text.slice(0, 400).search(/[.!?\n](\s|$)/);
  return end > 0 ? text.slice(0, end + 1) : text.slice(0, 200);
}

/**
 * A token with its spaces and line ends as they are, and all else that is invisible made visible.
 * @param {string} token
 */
export function plainToken(token) {
  return visibleLines(token).join("\n");
}
