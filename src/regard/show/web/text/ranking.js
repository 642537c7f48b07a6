// @ts-check
// The strongest weights of a row or a column, which of them are drawn as arcs, and what is to be said of the others.

import { last } from "../data/arrays.js";
import { percent, some } from "../data/format.js";
import { areWeights, spell } from "../data/quantity.js";
import { isolated, short } from "../data/tokens.js";
import { UNIT } from "../data/units.js";

/**
 * The tokens with the largest numbers, whatever their signs, largest first; the sum of all, and how many there are.
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
    if (!w || without.has(token)) return;
    total += w;
    seen++;
    const size = Math.abs(w);
    if (best.length === most && size <= Math.abs(last(best).w)) return;
    const place = best.findIndex((one) => Math.abs(one.w) < size);
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
  return `“${isolated(short(tokens[token] ?? "", 24))}”`;
}

/**
 * What the chosen token does, as one line: its number with `other`, or its strongest three. `predicted` is the token
 * whose logit contributions are of, in quotes.
 * @param {TokenRanking} found
 * @param {number} other a second token that is pointed at, or -1
 */
export function rankingLine({ tokens, shaded, ranking, looking, quantity }, other, predicted = "") {
  const own = quotedToken(tokens, shaded.token);
  const subject = `${quantity.shade === "logit" ? `${predicted} after ${own}` : own} ${verb(quantity, looking)}`;
  if (other >= 0)
    return `${subject} ${quotedToken(tokens, other)}: ${spell(quantity, shaded.weights[other - shaded.from] ?? 0)}`;
  const few = ranking.best
    .slice(0, 3)
    .map(({ token, w }) => `${quotedToken(tokens, token)} ${spell(quantity, w)}`);
  return `${subject} ${few.join(", ") || "nothing"}`;
}

/**
 * What the chosen token does with the others.
 * @param {Quantity} quantity
 * @param {boolean} looking
 */
function verb({ shade }, looking) {
  if (shade === "values") return looking ? "takes from" : "gives to";
  if (shade === "logit") return "is predicted from";
  return looking ? "attends to" : "is attended to by";
}

/**
 * What the list of the strongest leaves out, in sentences.
 * @param {TokenRanking} found
 */
export function rankingNotes({ tokens, shaded, ranking, looking, quantity }) {
  const { token, weights, from, without } = shaded;
  const { best, total, seen } = ranking;
  const unit = UNIT[quantity.units];
  const notes = [];
  const rest = total - best.reduce((sum, { w }) => sum + w, 0);
  const isWeight = areWeights(quantity);
  if (seen > best.length) {
    const sum = spell(quantity, isWeight ? Math.max(0, rest) : rest);
    notes.push(`The other ${some(seen - best.length, unit)}: ${sum} in total.`);
  }
  const left = [...without].map(
    (one) => `${quotedToken(tokens, one)}, ${unit} ${one}, with ${spell(quantity, weights[one - from] ?? 0)}`,
  );
  if (left.length) {
    const kind = left.length > 1 ? "the outlier patches" : "the key that receives the most";
    notes.push(`Left out of the shading: ${kind}, ${left.join("; ")}.`);
  }
  if (!isWeight) notes.push(`Sum over the shaded ${quantity.units}: ${spell(quantity, total)}.`);
  else if (looking && left.length)
    notes.push(`The shaded ${quantity.units} receive ${percent(Math.min(1, total))} of its attention.`);
  else if (looking) {
    const later = weights.subarray(token + 1 - from);
    if (later.length && !later.some(Boolean)) notes.push(`Grey: it does not see later ${quantity.units}.`);
  } else notes.push(`Sum of the weights over all queries: ${total.toFixed(2)}.`);
  return notes;
}

const LEAST = 0.1; // of the strongest, below which an edge is not drawn

/**
 * The strongest edges of a ranking, each with its strength from 0 to 1; a token's edge to itself is no arc.
 * @param {Ranking} ranking
 * @param {Pick<Shaded, "token" | "top">} shaded
 * @param {number} [faintest] below which an edge is not drawn, even if all are as faint
 */
export function strongestEdges({ best }, { token, top }, faintest = 0) {
  const least = Math.max(faintest, LEAST * Math.abs(best[0]?.w ?? 0));
  return best
    .filter((one) => one.token !== token && Math.abs(one.w) >= least)
    .map((one) => ({ token: one.token, strength: Math.min(1, Math.abs(one.w) / top) }));
}
