// @ts-check
// The Heads view: one score of every head as a matrix, then every head as a card, those with a label first, to filter.
// The scores come layer by layer.

import { empty, select } from "../parts/controls.js";
import { element } from "../parts/dom.js";
import { some } from "../data/format.js";
import { ProgressPanel } from "../parts/progress_panel.js";
import { LayerQueue } from "../data/layer_queue.js";
import { absences, doubts, otherMixers } from "../data/layers.js";
import { exportMenu } from "../picture/menu.js";
import { viewFigure } from "../picture/figure.js";
import { textWords } from "../picture/words.js";
import { PageView } from "../view.js";
import { Gallery } from "./gallery.js";
import { ScoreMatrix } from "./matrix.js";
import { filterHeads, labelledFirst, labelOptions, matrixScore } from "./order.js";
import { namesOf, scoreRows } from "./scores.js";

export class HeadsView extends PageView {
  /** @param {ViewPlace} place */
  constructor(...place) {
    super(...place);
    const { root, app } = this;
    /** @type {HeadScores[]} */
    this.heads = []; // of the text, as far as they have come
    this.text = -1; // that they are of
    this.failed = false; // whether the scores of a layer could not be had
    this.planned = 0; // the frame that will show what has come: the layers of a saved page come all at once
    /** @type {ReturnType<Gallery["focusedPlace"]>} */
    this.focused = null; // what to focus once its card is there again
    this.progress = new ProgressPanel("in-list");
    this.queue = new LayerQueue(
      (layer) => this.fetch(layer),
      (queue) => this.progress.followWork(queue, "Scoring the heads", "layers", "the scores of "),
    );
    this.label = select("Label", (value) => app.set({ label: value }));
    this.layer = select("Layer", (value) => app.set({ layerFilter: value }));
    this.number = element("p.small.quiet", { "aria-live": "polite" }); // of heads that are shown
    this.warning = element("p.note.heads-warning");
    this.failure = element("div");
    this.matrix = new ScoreMatrix(app);
    this.gallery = new Gallery(app);
    const save = exportMenu(app, {
      name: () => `heads-${app.state.text}`,
      picture: async () => viewFigure([this.column], textWords(app, "what its heads do", app.state.text)),
      table: () => scoreRows(this.heads),
    });
    this.every = element(
      "section",
      { "aria-label": "Cards of the heads" },
      element("div.bar-of-choices", this.label, this.layer, this.number, save),
      help(app.runs.available),
      this.gallery.list,
    );
    this.column = element("div.column.wide", this.warning, this.failure);
    this.column.append(this.progress.box, this.matrix.box, this.every);
    root.append(element("div.scroll", this.column));
  }

  /** @param {State} state */
  show(state) {
    this.state = state;
    this.queue.chosen = state.layer;
    if (this.text !== state.text || this.failed) this.open(state);
    else this.arrange();
  }

  /**
   * Asks for the scores of another text's heads, those of the current layer first.
   * @param {State} state
   */
  open({ text, layer }) {
    // If it is opened again before the cards have come, the focus is still to be given back.
    const isNowhere = document.activeElement === document.body;
    this.focused = this.gallery.focusedPlace() ?? (isNowhere ? this.focused : null);
    this.text = text;
    this.gallery.clear(text);
    this.failed = false;
    this.failure.replaceChildren();
    this.queue.start(
      this.layers.map(({ key }) => key),
      layer,
    );
    this.arrange();
  }

  /**
   * Fetches the scores of a layer's heads.
   * @param {string} layer
   */
  async fetch(layer) {
    const { app, text } = this;
    try {
      await app.headRows.layer(text, layer);
    } catch (error) {
      this.failed = true; // another visit asks again
      const words = `The scores of layer ${layer} could not be loaded. ${error.message}`;
      if (text === this.text) this.failure.replaceChildren(empty(words));
    }
    if (text === this.text) this.planned ||= requestAnimationFrame(() => this.arrange());
  }

  /** Shows what has come: the matrix, and the cards that are asked for, sorted by the same score. */
  arrange() {
    const { state } = this;
    cancelAnimationFrame(this.planned);
    this.planned = 0;
    const text = this.app.meta.texts[this.text];
    this.heads = this.app.headRows.all(this.text, text.layers);
    const { heads } = this;
    this.matrix.show(state, heads);
    this.label.fill(labelOptions(heads), state.label);
    this.layer.fill(["all", ...text.layers.map(({ key }) => key)], state.layerFilter);
    const by = matrixScore(state.headScore, namesOf(heads));
    const shown = labelledFirst(filterHeads(heads, state), by);
    this.every.hidden = !heads.length; // nothing that is hidden can have the focus
    if (heads.length) this.gallery.show(heads, shown, by);
    if (this.focused && this.gallery.focusPlace(this.focused)) this.focused = null; // the same head, in another run
    const all = some(heads.length, "head");
    this.number.textContent = shown.length === heads.length ? all : `${shown.length} of ${all}`;
    const said = [doubts(text.layers), absences(text.missing), otherMixers(text.others)];
    this.warning.textContent = said.filter(Boolean).join(" ");
    this.warning.hidden = !this.warning.textContent;
  }
}

/**
 * What the marks on the bars and the keys mean.
 * @param {boolean} cuts whether heads can be cut
 */
function help(cuts) {
  const marks =
    "On each bar, the filled tick is the score of uniform attention, the hollow tick the score on shuffled tokens, and " +
    "the thin line the 95% interval. ";
  const keys =
    "Use the arrow keys to move from head to head, Enter to open one in the Map, and C to compare it with the chosen one." +
    (cuts ? " X cuts it: the model runs again without its output." : "");
  return element("p.note", marks, element("span", { "data-off-paper": "" }, keys));
}
