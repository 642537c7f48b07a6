// @ts-check
// One of the two heads that are compared: which one it is, to be chosen, and what it does.

import { fillLayers, select } from "../parts/controls.js";
import { element, makeButton } from "../parts/dom.js";
import { layerOf, textsName } from "../data/layers.js";
import { scoreTitle } from "../data/score_words.js";

/** The words and choices over a map. */
export class ComparedSide {
  /**
   * @param {App} app
   * @param {string} kind "a" or "b"
   * @param {(place: HeadPlace) => void} choose
   */
  constructor(app, kind, choose) {
    this.app = app;
    /** @type {HeadPlace} */
    this.place = { text: 0, layer: "", head: 0 };
    const letter = kind.toUpperCase();
    this.text = select(`${textsName(app.meta)} ${letter}`, (value) =>
      choose(this.settled({ text: Number(value) })),
    );
    this.layer = select(`Layer ${letter}`, (value) => choose(this.settled({ layer: value })));
    this.head = select(`Head ${letter}`, (value) => choose(this.settled({ head: Number(value) })));
    this.title = element("h3");
    this.model = element("p.small.quiet.compare-model");
    this.sentence = element("p.head-sentence");
    this.doubt = element("p.small.compare-doubt");
    const go = () => app.set({ view: "map", ...this.place });
    const open = makeButton("Open in the Map", go, { class: "plain", "data-off-paper": "" });
    const choices = element("div.compare-choices", this.text, this.layer, this.head);
    const heading = element("div.compare-title", this.title, this.model, open);
    this.box = element("div", { class: `compare-side ${kind}` }, choices, heading, this.sentence, this.doubt);
  }

  /**
   * The place with a change, and with a layer and a head that exist there.
   * @param {Partial<HeadPlace>} change
   * @returns {HeadPlace}
   */
  settled(change) {
    const place = { ...this.place, ...change };
    const layer = layerOf(this.app.meta, place.text, place.layer);
    const head = layer.heads.includes(place.head) ? place.head : layer.heads[0];
    return { text: place.text, layer: layer.key, head };
  }

  /** @param {HeadPlace} place */
  show(place) {
    this.place = place;
    const { meta, runs } = this.app;
    const text = meta.texts[place.text];
    const layer = layerOf(meta, place.text, place.layer);
    const titles = runs.titles();
    this.text.fill(
      titles.map(({ number, title }) => [String(number), title]),
      place.text,
    );
    this.text.hidden = titles.length < 2;
    fillLayers(this.layer, text.layers, place.layer);
    this.head.fill(layer.heads, place.head);
    this.title.textContent = `Layer ${place.layer}, head ${place.head}`;
    this.model.textContent = text.model;
    this.model.hidden = meta.texts.every(({ model }) => model === text.model);
    this.doubt.textContent = layer.evidence.certified ? "" : layer.evidence.text;
  }

  /** @param {HeadScores | undefined} row */
  tell(row) {
    this.sentence.textContent = row?.sentence ?? "";
    if (row?.label) this.title.textContent += `, ${scoreTitle(row.label)}`;
  }
}
