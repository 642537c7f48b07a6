// @ts-check
// One head in the gallery: its picture, its labels and its scores, with buttons to open and to compare it.

import { element } from "../common/dom.js";
import { scoreTitle } from "../common/score_words.js";
import { settings } from "../common/settings.js";
import { headSwitch } from "../runs/head_switch.js";
import { labelsOf } from "./order.js";
import { scoreLine, sentence } from "./scores.js";

/**
 * Makes a card; the caller listens to its buttons and paints its canvas.
 * @param {App} app
 * @param {HeadScores} head
 * @param {Layer} layer
 * @param {Record<string, number>} ends the scores to list, with the end of each one's scale
 * @returns {HeadCard}
 */
export function headCard(app, head, layer, ends) {
  const canvas = element("canvas", { width: settings.thumb, height: settings.thumb });
  const button = element(
    "button",
    {
      class: "gallery-picture",
      type: "button",
      tabindex: "-1",
      "aria-label": headDescription(head, layer.evidence),
      title: "Open in the Map",
    },
    canvas,
  );
  const take = element("button", {
    class: "plain take",
    type: "button",
    tabindex: "-1",
    text: "Compare",
    "aria-pressed": "false",
  });
  const title = element("h3", { text: `Layer ${head.layer}, head ${head.head}` });
  const lines = scoreLines(head, ends);
  const cut = headSwitch(app, "Cut");
  cut.tabIndex = -1;
  cut.show(head.layer, head.head);
  const body = element("div", { class: "card-head" }, title, cut, take);
  const card = element(
    "li",
    { class: "card" },
    button,
    element("div", { class: "card-body" }, body, tags(head, layer.evidence), lines),
  );
  return { card, canvas, button, take, cut, lines, head };
}

/**
 * All that is known of a head, as sentences.
 * @param {HeadScores} head
 * @param {Evidence} evidence
 */
export function headDescription(head, evidence) {
  const scores = Object.entries(head.scores).map(([name, one]) => sentence(name, one));
  const labels = labelsOf(head).map(scoreTitle).join(", ") || "no label";
  const proof = evidence.certified ? "" : "Its layer is not certified. ";
  return `Layer ${head.layer}, head ${head.head}: ${labels}. ${proof}${scores.join(". ")}`;
}

/**
 * @param {HeadScores} head
 * @param {Evidence} evidence
 */
function tags(head, evidence) {
  const line = element("p", { class: "tags" });
  for (const label of labelsOf(head)) line.append(element("span", { class: "tag", text: scoreTitle(label) }));
  if (!evidence.certified)
    line.append(element("span", { class: "tag bad", text: "not certified", title: evidence.text }));
  return line;
}

/**
 * @param {HeadScores} head
 * @param {Record<string, number>} ends
 */
function scoreLines(head, ends) {
  const lines = element("div", { class: "score-lines" });
  for (const [name, end] of Object.entries(ends))
    if (head.scores[name]) lines.append(scoreLine(name, head.scores[name], end));
  if (!lines.children.length)
    lines.append(
      element("p", {
        class: "small quiet",
        text: "No scores, because the tokens of this layer are unknown.",
      }),
    );
  return lines;
}
