// @ts-check
// What stands over the large map: what the head does, and what its kind predicts, to be outlined on the map.

import { latest, select } from "../parts/controls.js";
import { element } from "../parts/dom.js";
import { percent } from "../data/format.js";
import { headSentence } from "../parts/head_words.js";
import { scoreTitle } from "../data/score_words.js";
import { expectedColumns, KINDS, outlineNote, ExpectedOutline } from "./expected.js";

/** @typedef {typeof KINDS[number]} ExpectedKind */

/** The labels, the sentence and the outline of the chosen head. `changed` is called when the outline is another. */
export class HeadCaption {
  /**
   * @param {App} app
   * @param {() => void} changed
   */
  constructor(app, changed) {
    this.app = app;
    this.changed = changed;
    this.words = headSentence(app, (row) => this.take(row));
    this.kinds = select("Outline", (expected) => app.set({ expected }));
    this.note = element("p", { class: "small quiet outline-note", "aria-live": "polite" });
    this.box = element("div", { class: "map-caption" }, this.words, this.note);
    this.state = app.state;
    /** @type {Layer | null} */
    this.layer = null;
    /** @type {HeadScores | undefined} */
    this.row = undefined;
    /** @type {ExpectedOutline | null} */
    this.outline = null;
    this.outlined = ""; // what the outline is of
    this.said = ""; // of what is outlined
    this.tell = latest((fresh) => this.writeNote(fresh));
  }

  /**
   * @param {State} state
   * @param {Layer} layer in units
   */
  show(state, layer) {
    [this.state, this.layer] = [state, layer];
    this.words.show(state);
    this.update();
  }

  /** @param {HeadScores | undefined} row */
  take(row) {
    this.row = row;
    this.update();
  }

  /** The kinds that can be told for this head. */
  offered() {
    const { layer, state, row } = this;
    if (!layer || !row) return [];
    const text = this.app.meta.texts[state.text];
    return KINDS.filter((kind) => row.scores[kind] && expectedColumns(kind, text, layer, row.sink_key));
  }

  update() {
    const { state, layer, row } = this;
    const offered = this.offered();
    const options = offered.map((kind) => [kind, `what ${scoreTitle(kind)} predicts`]);
    const kind = offered.find((one) => one === state.expected);
    this.kinds.fill([["", "nothing"], ...options], kind ?? "");
    this.kinds.hidden = !offered.length;
    const name = [kind, state.text, state.layer, state.head, layer?.rows, row?.sink_key].join(" ");
    if (name !== this.outlined) {
      this.outlined = name;
      const text = this.app.meta.texts[state.text];
      const columns = kind && layer ? expectedColumns(kind, text, layer, row?.sink_key) : null;
      this.outline = columns && layer ? new ExpectedOutline(columns, layer) : null;
      this.tell();
      this.changed();
    }
    this.note.hidden = !this.outline;
  }

  /**
   * Says what is outlined; the score on random repeats is added when it has come.
   * @param {() => boolean} fresh
   */
  async writeNote(fresh) {
    const { state, row, app } = this;
    const kind = /** @type {ExpectedKind} */ (state.expected);
    this.said = "";
    if (!this.outline) return;
    this.said = outlineNote(kind, row, undefined, percent);
    this.note.textContent = this.said;
    const all = await app.source.repeats().catch(() => null); // the model may be busy: then it is not said
    if (!fresh()) return;
    const onRepeats = all?.find((one) => one.layer === state.layer && one.head === state.head);
    this.said = outlineNote(kind, row, onRepeats, percent);
    this.note.textContent = this.said;
  }

  /**
   * Says so where outlines would cover the map.
   * @param {Scene} scene
   */
  follow(scene) {
    if (!this.outline) return;
    const words = scene.outlined
      ? this.said
      : `${this.said} Zoom in to see the outlines: there are too many here.`;
    if (this.note.textContent !== words) this.note.textContent = words;
  }
}
