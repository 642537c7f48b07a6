// @ts-check
// The strongest weights of a row or a column, and what is to be said of the others.

import { last } from "../common/arrays.js";
import { some, weight } from "../common/format.js";
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
  const subject = `${quotedToken(tokens, shaded.token)} ${looking ? "attends to" : "is attended to by"}`;
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
    notes.push(`The other ${some(seen - best.length, "token")}: ${weight(Math.max(0, rest))} in total.`);
  if (without >= 0) {
    notes.push(
      `Left out of the shading: the key that receives the most, ${quotedToken(tokens, without)}, token ${without}, ` +
        `with ${weight(weights[without - from] ?? 0)}.`,
    );
  }
  if (looking) notes.push(`Attention mass on the shaded tokens: ${weight(total)}.`);
  else notes.push(`Sum of the weights over all queries: ${total.toFixed(2)}.`);
  return notes;
}
