// @ts-check
// One head in the gallery: its picture, its labels and its scores, with buttons to open and to compare it.

import { element, makeButton } from "../parts/dom.js";
import { labelTags, labelWords } from "../parts/head_words.js";
import { settings } from "../data/settings.js";
import { headSwitch } from "../runs/head_switch.js";
import { scoreLine } from "./scores.js";

/**
 * Fills a card; the caller paints its canvas.
 * @param {App} app
 * @param {HeadScores} head
 * @param {Layer} layer
 * @param {Record<string, number>} ends the scores to list, with the number at the end of each one's bar
 * @param {HTMLLIElement} card
 * @param {{ open: () => void, compare: () => void }} acts of its buttons
 * @returns {HeadCard}
 */
export function headCard(app, head, layer, ends, card, { open, compare }) {
  const canvas = element("canvas", { width: settings.thumb, height: settings.thumb });
  const button = makeButton(
    "",
    open,
    {
      class: "gallery-picture",
      tabindex: "-1",
      "aria-label": `Layer ${head.layer}, head ${head.head}: ${labelWords(head)}`,
      "aria-description": head.sentence,
      title: "Open in the Map",
    },
    canvas,
  );
  const take = makeButton("Compare", compare, { class: "plain take", tabindex: "-1", "data-off-paper": "" });
  const title = element("h3", { text: `Layer ${head.layer}, head ${head.head}` });
  const lines = scoreLines(head, ends);
  const cut = headSwitch(app, "Cut");
  cut.tabIndex = -1;
  cut.toggleAttribute("data-off-paper", true);
  cut.show(head.layer, head.head);
  const body = element("div", { class: "card-head" }, title, cut, take);
  const words = element("p", { class: "small card-sentence", text: head.sentence });
  card.replaceChildren(button, body, tags(head, layer.evidence), words, lines);
  return { card, canvas, button, take, cut, lines, head };
}

/**
 * @param {HeadScores} head
 * @param {Evidence} evidence
 */
function tags(head, evidence) {
  const line = element("p", { class: "tags" });
  line.append(...labelTags(head));
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
