// @ts-check
// The scores of two heads, bar against bar.

import { known } from "../data/arrays.js";
import { element } from "../parts/dom.js";
import { isShare, score } from "../data/format.js";
import { scoreAbout, scoreTitle } from "../data/score_words.js";
import { endOf, namesOf, scoreBar, sentence } from "../heads/scores.js";

/**
 * Every score of the compared heads.
 * @param {(HeadScores | undefined)[]} compared
 */
export function scoreTable(compared) {
  const rows = compared.filter(known);
  const lines = namesOf(rows).map((name) => {
    const end = endOf(name, rows);
    const title = element("span.score-name", { title: scoreAbout(name) }, scoreTitle(name));
    const bars = compared.map((own, n) => comparedLine(name, own?.scores[name], end, "ab"[n]));
    return element("div.compare-row", title, element("div", ...bars));
  });
  return element("div.compare-scores", ...lines);
}

/**
 * How two heads differ, in a sentence: by the share that differs most, and by how far they look back.
 * @param {(HeadScores | undefined)[]} compared
 */
export function comparison([a, b]) {
  if (!a || !b) return "";
  const value = (/** @type {HeadScores} */ row, /** @type {string} */ name) => row.scores[name]?.value;
  const both = namesOf([a, b]).filter((name) => known(value(a, name)) && known(value(b, name)));
  const apart = (/** @type {string} */ name) => Math.abs((value(a, name) ?? 0) - (value(b, name) ?? 0));
  if (!both.some(apart)) return both.length ? "A and B do the same: no score differs." : "";
  const told = (/** @type {string} */ name) =>
    `A ${score(name, value(a, name))}, B ${score(name, value(b, name))}`;
  const [most] = both.filter(isShare).toSorted((one, other) => apart(other) - apart(one));
  const back = both.includes("distance") ? ` Mean distance back: ${told("distance")} tokens.` : "";
  return `${most ? `They differ most in ${scoreTitle(most)}: ${told(most)}.` : ""}${back}`.trim();
}

/**
 * @param {string} name
 * @param {Score | undefined} one
 * @param {number} end
 * @param {string} kind
 */
function comparedLine(name, one, end, kind) {
  if (!one) return element("span.compare-line");
  return element(
    "span.compare-line",
    { title: sentence(name, one) },
    scoreBar(one, end, kind),
    element("span.score-value", score(name, one.value)),
  );
}
