// @ts-check
// The scores of two heads, bar against bar.

import { known } from "../data/arrays.js";
import { element } from "../parts/dom.js";
import { score } from "../data/format.js";
import { scoreAbout, scoreTitle } from "../data/score_words.js";
import { endOf, namesOf, scoreBar, sentence } from "../heads/scores.js";

/**
 * Every score of the compared heads.
 * @param {(HeadScores | undefined)[]} compared
 */
export function scoreTable(compared) {
  const rows = compared.filter(known);
  const table = element("div", { class: "compare-scores" });
  for (const name of namesOf(rows)) {
    const end = endOf(name, rows);
    const lines = compared.map((own, n) => comparedLine(name, own?.scores[name], end, "ab"[n]));
    table.append(
      element(
        "div",
        { class: "compare-row" },
        element("span", { class: "score-name", text: scoreTitle(name), title: scoreAbout(name) }),
        element("div", {}, ...lines),
      ),
    );
  }
  return table;
}

/**
 * @param {string} name
 * @param {Score | undefined} one
 * @param {number} end
 * @param {string} kind
 */
function comparedLine(name, one, end, kind) {
  if (!one) return element("span", { class: "compare-line" });
  return element(
    "span",
    { class: "compare-line", title: sentence(name, one) },
    scoreBar(one, end, kind),
    element("span", { class: "score-value", text: score(name, one.value) }),
  );
}
