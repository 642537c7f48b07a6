// @ts-check
// The strongest weights of a row or a column, and what is to be said of the others.

import { last } from "../common/arrays.js";
import { count, weight } from "../common/format.js";
import { short } from "../common/tokens.js";

/**
 * The tokens with the largest weights, largest first; the sum of all weights, and how many there are.
 * @param {Pick<Shaded, "weights" | "from" | "without">} shaded
 * @param {number} most
 * @returns {Ranking}
 */
export function strongest({ weights, from, without }, most) {
  /** @type {Ranking["best"]} */
  const best = [];
  let total = 0;
  let seen = 0;
  weights.forEach((w, index) => {
    const token = index + from;
    if (!(w > 0) || token === without) return;
    total += w;
    seen++;
    if (best.length === most && w <= last(best).w) return;
    const place = best.findIndex((one) => one.w < w);
    best.splice(place < 0 ? best.length : place, 0, { token, w });
    best.length = Math.min(best.length, most);
  });
  return { best, total, seen };
}

/**
 * A token in quotes, as it stands in a sentence.
 * @param {string[]} tokens
 * @param {number} token
 */
export function quotedToken(tokens, token) {
  return `“${short(tokens[token] ?? "", 24)}”`;
}

/**
 * What the chosen token does, as one line: its weight with `other`, or its strongest three.
 * @param {string[]} tokens
 * @param {Shaded} shaded
 * @param {Ranking} ranking
 * @param {boolean} looking
 * @param {number} other a second token that is pointed at, or -1
 */
export function rankingLine(tokens, shaded, { best }, looking, other) {
  const subject = `${quotedToken(tokens, shaded.token)} ${looking ? "looks at" : "is looked at by"}`;
  if (other >= 0)
    return `${subject} ${quotedToken(tokens, other)}: ${weight(shaded.weights[other - shaded.from] ?? 0)}`;
  const few = best.slice(0, 3).map(({ token, w }) => `${quotedToken(tokens, token)} ${weight(w)}`);
  return `${subject} ${few.join(", ") || "nothing"}`;
}

/**
 * What the list of the strongest leaves out, in sentences.
 * @param {string[]} tokens
 * @param {Shaded} shaded
 * @param {Ranking} ranking
 * @param {boolean} looking
 */
export function rankingNotes(tokens, { weights, from, without }, { best, total, seen }, looking) {
  const notes = [];
  const rest = total - best.reduce((sum, { w }) => sum + w, 0);
  if (seen > best.length)
    notes.push(`${count(seen - best.length)} more tokens: ${weight(Math.max(0, rest))} together.`);
  if (without >= 0) {
    notes.push(
      `Left out of the shading: ${quotedToken(tokens, without)}, token ${without}, ` +
        `with ${weight(weights[without - from] ?? 0)}.`,
    );
  }
  if (looking) notes.push(`Shown here: ${weight(total)} of the row’s attention.`);
  else notes.push(`Sum over the tokens that look at it: ${total.toFixed(2)}.`);
  return notes;
}
