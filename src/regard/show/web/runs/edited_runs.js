// @ts-check
// Runs the model again with heads or edges cut, where there is a model; what comes of it opens as an edited run
// beside the text. Each text has at most one, and another takes its place.

import { captureTitle, layerOf } from "../data/layers.js";
import { howFar } from "../data/format.js";
import { textsChanged } from "../reading/text_choice.js";
import { axisOf, tokenAt } from "../data/tokens.js";
import { firstToken } from "../data/units.js";
import { cutsCell, cutWords, runName, sameCut, toggled } from "./cuts.js";

/** Which cuts the shown run has, and the functions that change them. */
export class EditedRuns {
  /** @param {App} app */
  constructor(app) {
    this.app = app;
    /** @type {AbortController | null} */
    this.running = null; // what stops it
    this.doing = ""; // how far it is
    this.problem = ""; // why the last one failed
    /** @type {Set<() => void>} */
    this.listeners = new Set();
    app.on(() => (this.problem = "")); // whoever goes on has read it
  }

  /** Whether there is a model that can run again. */
  get available() {
    return this.app.meta.can.cut;
  }

  /** What is cut in the run that is shown; null if it is the model's own. */
  get edited() {
    return this.app.meta.texts[this.app.state.text].edited;
  }

  get cuts() {
    return this.edited?.cuts ?? [];
  }

  /** The number of the text that the model reads in the run that is shown. */
  get original() {
    return this.edited?.text ?? this.app.state.text;
  }

  /** The number of the text's edited run, or -1. */
  get number() {
    return this.app.meta.texts.findIndex((one) => one.edited?.text === this.original);
  }

  /** @param {Cut} cut */
  has(cut) {
    return this.cuts.some((one) => sameCut(one, cut));
  }

  /**
   * Whether a cell of the shown head is hidden because edges are cut in this run.
   * @param {CellWeights | null} cell
   * @param {Pick<Layer, "units">} layer whose rows and columns the cell counts
   */
  isCut(cell, layer) {
    if (cell === null || cell.max >= 0) return false;
    const { layer: key, head } = this.app.state;
    const [row, col] = [firstToken(layer, "queries", cell.row), firstToken(layer, "keys", cell.col)];
    return this.cuts.some((cut) => cutsCell(cut, key, head, { row, col, size: cell.size }));
  }

  /** Every text with its title, each followed by its edited run. */
  titles() {
    const { texts } = this.app.meta;
    return texts.flatMap(({ edited, removed }, number) => {
      const title = captureTitle(this.app.meta, number);
      if (removed || (edited && edited.text !== null)) return [];
      const run = texts.findIndex((one) => one.edited?.text === number);
      const own = { number, title: edited ? `${title} (edited run)` : title };
      return run < 0 ? [own] : [own, { number: run, title: `↳ ${this.name(run)}` }];
    });
  }

  /**
   * A run in words, as in "Edited run: head 5.3 cut".
   * @param {number} text
   */
  name(text) {
    const { edited } = this.app.meta.texts[text];
    return edited?.cuts.length ? runName(this.words(text)) : `Edited run: ${this.words(text).join(", ")}`;
  }

  /**
   * Each of a run's cuts in words; what was edited elsewhere, in the library's own.
   * @param {number} text
   */
  words(text) {
    const { meta } = this.app;
    const { edited } = meta.texts[text];
    if (!edited?.cuts.length) return edited?.edits ?? [];
    return edited.cuts.map((cut) => {
      const layer = layerOf(meta, text, cut.layer);
      return cutWords(cut, layer, (axis, index) => tokenAt(axisOf(meta, text, layer, axis), index));
    });
  }

  /**
   * Makes a cut, or undoes it.
   * @param {Cut} cut
   */
  toggle(cut) {
    return this.run(toggled(this.cuts, cut));
  }

  /**
   * Shows a run with these cuts; without any, the model's own.
   * @param {Cut[]} cuts
   */
  async run(cuts) {
    if (this.running) return;
    if (!cuts.length) return this.undo();
    this.running = new AbortController();
    this.tell({ doing: "starting the model…", problem: "" });
    const { app, original } = this;
    try {
      const progress = (/** @type {CaptureLine} */ { progress: now }) =>
        now && this.tell({ doing: howFar(now) });
      const text = await app.source.cut(original, cuts, progress, this.running.signal);
      this.running = null;
      textsChanged();
      app.set({ text });
      this.tell({ doing: "" });
    } catch (error) {
      this.running = null;
      this.tell({ doing: "", problem: error.name === "AbortError" ? "" : error.message });
    }
  }

  /** Stops the model. */
  cancel() {
    this.running?.abort();
  }

  /** Goes back to the model's own run, and removes the edited one. */
  async undo() {
    const { app, number, original } = this;
    if (number < 0) return;
    app.set({ text: original });
    try {
      await app.source.remove(number);
      this.tell({ problem: "" });
    } catch (error) {
      this.tell({ problem: error.message });
    }
    textsChanged();
  }

  /** @param {{ doing?: string, problem?: string }} news */
  tell(news) {
    Object.assign(this, news);
    for (const listener of this.listeners) listener();
  }

  /**
   * Calls a listener whenever a run begins, goes on or ends.
   * @param {() => void} listener
   */
  on(listener) {
    this.listeners.add(listener);
  }
}
