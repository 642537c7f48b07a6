// @ts-check
// Tokens as running text: how one is written, and which stands above or below another.

import { visible, visibleLines } from "../data/tokens.js";

/**
 * The token nearest to this one on the line above or below.
 * @param {HTMLElement[]} spans
 * @param {number} from
 * @param {1 | -1} step
 */
export function beside(spans, from, step) {
  const here = spans[from].getBoundingClientRect();
  const middle = here.left + here.width / 2;
  let best = from;
  /** @type {number | null} */
  let line = null;
  for (let i = from + step; i >= 0 && i < spans.length; i += step) {
    const rect = spans[i].getClientRects()[0];
    if (!rect) continue;
    if (line === null && Math.abs(rect.top - here.top) < here.height / 2) continue;
    line ??= rect.top;
    if (Math.abs(rect.top - line) > 4) break;
    const off = Math.abs(rect.left + rect.width / 2 - middle);
    const known = spans[best].getClientRects()[0];
    if (best === from || off < Math.abs(known.left + known.width / 2 - middle)) best = i;
  }
  return best;
}

export const LONGEST = 400; // characters of a token that are written
const END = 60; // of those the last

/**
 * The two ends of what is too long to be written in full.
 * @param {string} token
 */
function ends(token) {
  if (token.length <= LONGEST) return token;
  const start = token.slice(0, LONGEST - END).replace(/[\ud800-\udbff]$/, "");
  return `${start} … ${token.slice(-END).replace(/^[\udc00-\udfff]/, "")}`;
}

/**
 * A token as it stands in the text: spaces and line ends stay (but for the last), these with a sign.
 * @param {string} token
 */
export function inRunningText(token) {
  if (token === "") return visible(token);
  return visibleLines(ends(token)).join("↵\n").replace(/\n$/, "");
}
