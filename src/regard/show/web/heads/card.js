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
  const named = {
    class: "gallery-picture",
    tabindex: "-1",
    "aria-label": `Layer ${head.layer}, head ${head.head}: ${labelWords(head)}`,
    "aria-description": head.sentence,
    title: "Open in the Map",
  };
  const button = makeButton("", open, named, canvas);
  const take = makeButton("Compare", compare, { class: "plain take", tabindex: "-1", "data-off-paper": "" });
  const title = element("h3", `Layer ${head.layer}, head ${head.head}`);
  const scores = Object.entries(ends).flatMap(([name, end]) =>
    head.scores[name] ? [scoreLine(name, head.scores[name], end)] : [],
  );
  const none = element("p.small.quiet", "No scores, because the tokens of this layer are unknown.");
  const lines = element("div.score-lines", ...(scores.length ? scores : [none]));
  const cut = headSwitch(app, "Cut", { tabindex: "-1", "data-off-paper": "" });
  cut.show(head.layer, head.head);
  const { certified, text } = layer.evidence;
  const doubt = certified ? null : element("span.tag.bad", { title: text }, "not certified");
  card.replaceChildren(
    button,
    element("div.card-head", title, cut, take),
    element("p.tags", ...labelTags(head), doubt),
    element("p.small.card-sentence", head.sentence),
    lines,
  );
  return { card, canvas, button, take, cut, lines, head };
}
