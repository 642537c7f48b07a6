// @ts-check
// Scores of a head as lines to read: its value as a bar, the baselines as ticks, the interval as a whisker.
// It knows numbers, `score_words.js` knows names; which heads are shown is the gallery's business.

import { clamp, known } from "../data/arrays.js";
import { element } from "../parts/dom.js";
import { labelsOf } from "../parts/head_words.js";
import { isShare, score } from "../data/format.js";
import { inListOrder, scoreAbout, scoreTitle } from "../data/score_words.js";

/**
 * The names of the scores that some head has, in the order of the list.
 * @param {HeadScores[]} heads
 */
export function namesOf(heads) {
  return inListOrder([...new Set(heads.flatMap((head) => Object.keys(head.scores)))]);
}

/**
 * The number at the end of a score's bars: 1 for shares; for entropy that of uniform attention, which no head exceeds;
 * for distance twice that of uniform attention, which is that of a head that attends to the first token alone.
 * @param {string} name
 * @param {HeadScores[]} heads
 */
export function endOf(name, heads) {
  if (isShare(name)) return 1;
  const all = heads.map((head) => head.scores[name]).filter(Boolean);
  const uniform = Math.max(0, ...all.map((one) => one.null ?? 0));
  const greatest = Math.max(1e-9, ...all.map((one) => Math.abs(one.value ?? 0)));
  return (name.endsWith("distance") ? 2 : 1) * uniform || greatest;
}

/**
 * All that is known of a score, as a sentence.
 * @param {string} name
 * @param {Score} one
 */
export function sentence(name, one) {
  const parts = [`${scoreTitle(name)} ${score(name, one.value)}`];
  if (known(one.low)) parts.push(`95% interval ${score(name, one.low)} to ${score(name, one.high)}`);
  if (known(one.null)) parts.push(`uniform baseline ${score(name, one.null)}`);
  if (known(one.shuffled)) parts.push(`shuffled baseline ${score(name, one.shuffled)}`);
  if (known(one.without_sink)) parts.push(`without the sink ${score(name, one.without_sink)}`);
  return parts.join("; ");
}

/**
 * The bar of a score, with its baselines and its interval.
 * @param {Score} one
 * @param {number} end
 */
export function scoreBar(one, end, kind = "") {
  const bar = element("span", { class: `score-bar ${kind}`, "aria-hidden": "true" });
  const at = (/** @type {number} */ x) => clamp(x / end, 0, 1);
  /**
   * @param {string} name
   * @param {number} from
   * @param {number | null} [to]
   */
  const part = (name, from, to = null) =>
    bar.append(element("i", { class: name, "--from": at(from), "--to": to === null ? null : at(to) }));
  if (known(one.value)) part("value", 0, one.value);
  if (known(one.low) && known(one.high)) part("interval", one.low, one.high);
  if (known(one.null)) part("null", one.null);
  if (known(one.shuffled)) part("shuffled", one.shuffled);
  return bar;
}

/**
 * One line: name, bar, number.
 * @param {string} name
 * @param {Score} one
 * @param {number} end
 */
export function scoreLine(name, one, end) {
  return element(
    "div.score-line",
    { "data-name": name, title: `${scoreAbout(name)} ${sentence(name, one)}`.trim() },
    element("span.score-name", scoreTitle(name)),
    scoreBar(one, end),
    element("span.score-value", score(name, one.value)),
  );
}

/**
 * The scores of every head, as a table.
 * @param {HeadScores[]} heads
 * @returns {TableRow[]}
 */
export function scoreRows(heads) {
  const names = namesOf(heads);
  return [
    ["layer", "head", "labels", "sentence", ...names.flatMap((name) => [name, `${name}_uniform`])],
    ...heads.map((row) => [
      row.layer,
      row.head,
      labelsOf(row).join(" "),
      row.sentence ?? "",
      ...names.flatMap((name) => [row.scores[name]?.value ?? null, row.scores[name]?.null ?? null]),
    ]),
  ];
}
