// @ts-check
// One head of a survey: its sentence, its strongest examples, its top tokens, and the distances that it bridges.

import { headName } from "../heads/order.js";
import { latest } from "../parts/controls.js";
import { element, makeButton } from "../parts/dom.js";
import { count, percent } from "../data/format.js";
import { labelTags } from "../parts/head_words.js";
import { directionOf, short } from "../data/tokens.js";
import { inRunningText } from "../text/layout.js";
import { excerptOf, rangeName } from "./rows.js";

/** The panel; `show(row)` says whose. */
export class HeadPanel {
  /** @param {App} app */
  constructor(app) {
    this.app = app;
    this.title = element("h2");
    this.tags = element("span.tags");
    this.sentence = element("p.head-sentence");
    this.open = makeButton("Open in Map", () => {
      if (this.row) app.set({ view: "map", layer: this.row.layer, head: this.row.head });
    });
    this.body = element("div.survey-head-body");
    const heading = element("div.survey-heading", this.title, this.tags, this.open);
    const label = { class: "survey-head", "aria-label": "The chosen head", "aria-live": "polite" };
    this.box = element("section", label, heading, this.sentence, this.body);
    /** @type {SurveyRow | null} */
    this.row = null;
    this.fill = latest(async (fresh, /** @type {SurveyRow} */ row) => {
      this.body.setAttribute("aria-busy", "true");
      const head = await app.source.surveyHead(row.layer, row.head);
      if (!fresh()) return;
      this.body.replaceChildren(examples(head), sides(head));
      this.body.setAttribute("aria-busy", "false");
    });
  }

  /** @param {SurveyRow} row */
  show(row) {
    const { texts, survey } = this.app.meta;
    const text = texts[this.app.state.text];
    const layer = text.layers.find(({ key }) => key === row.layer);
    this.open.hidden = text.model !== survey?.model || !layer?.heads.includes(row.head);
    if (this.row && headName(this.row) === headName(row)) return;
    this.row = row;
    this.title.textContent = `Layer ${row.layer}, head ${row.head}`;
    this.tags.replaceChildren(...labelTags(row));
    this.sentence.textContent = row.sentence;
    this.fill(row);
  }
}

/** @param {SurveyHead} head */
function examples({ examples: all }) {
  const title = element("h3", "Strongest examples");
  if (!all.length) {
    const none = "No window of the corpus has an attention weight that is not on its first token.";
    return element("section", title, element("p.note", none));
  }
  const about = "One for each window. The query is outlined, and the keys are shaded by its weight on them.";
  const list = element("ol.survey-examples", ...all.map(exampleItem));
  return element("section", title, element("p.note", about), list);
}

/** @param {SurveyExample} example */
function exampleItem(example) {
  const text = element("p.survey-excerpt", { dir: directionOf(example.tokens) });
  for (const { token, gap, isQuery, weight, position } of excerptOf(example)) {
    if (gap) text.append(element("span.survey-gap", " … "));
    const kind = `survey-token${isQuery ? " asking" : ""}${weight === null ? "" : " attended"}`;
    const shade = weight === null ? null : `${Math.round(100 * Math.min(1, weight))}%`;
    const span = element("span", { class: kind, "--weight": shade }, inRunningText(token));
    const share = weight === null ? "" : `${percent(weight)} of the query’s attention`;
    if (isQuery || share)
      span.title = [isQuery ? "The query" : "", share, `token ${position}`].filter(Boolean).join(", ");
    text.append(span);
  }
  const strongest = example.keys.find(([place]) => example.positions[place] > 0);
  const key = strongest ? example.tokens[strongest[0]] : "";
  const words = `${percent(example.weight)} on “${short(key)}”, window ${count(example.window + 1)}`;
  return element("li", element("p.small.quiet", words), text);
}

/** @param {SurveyHead} head */
function sides({ queries, keys, distances }) {
  /** @param {{ token: string, share: number }[]} tokens */
  const named = (tokens) => tokens.map(({ token, share }) => ({ name: short(token, 14), share }));
  const bins = distances.map((bin) => ({ name: rangeName(bin), share: bin.share }));
  return element(
    "div.survey-sides",
    bars("Queries that attend the most", named(queries)),
    bars("Keys that are attended to", named(keys)),
    bars("Tokens from query to key", bins),
  );
}

/**
 * Shares as bars, each with its name.
 * @param {string} title
 * @param {{ name: string, share: number }[]} shares
 */
function bars(title, shares) {
  const top = Math.max(1e-9, ...shares.map(({ share }) => share));
  const lines = shares.map(({ name, share }) => {
    const bar = element("span.survey-bar", { "aria-hidden": "true", "--share": `${(100 * share) / top}%` });
    const label = element("span.survey-bar-name", { title: name }, name);
    return element("li", label, bar, element("span.survey-bar-value", percent(share)));
  });
  return element("section", element("h3", title), element("ul.survey-bars", ...lines));
}
