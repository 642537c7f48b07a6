// @ts-check
// Buttons beside the map that cut edges: the chosen one, all to the chosen key, or all in view.

import { choice, element, makeButton } from "../parts/dom.js";
import { mapQuantity } from "../data/quantity.js";
import { axisOf, short, tokenAt } from "../data/tokens.js";
import { firstToken, inUnits, lastToken, unitAt } from "../data/units.js";

/** Buttons of the Map's notes; hidden where there is no model. */
export class EdgeCuts {
  /**
   * @param {App} app
   * @param {() => Rectangle} frame the part of the map that is in view, in tokens
   */
  constructor(app, frame) {
    this.app = app;
    this.frame = frame;
    /** @type {(EdgeCut | null)[]} */
    this.cuts = []; // what the buttons were drawn for: the edge, all to the key, all in view
    this.hidden = false; // whether the mask hides the chosen cell, so that there is no edge to cut
    this.scope = choice("Heads", "cut-of", { head: "this head", layer: "all heads" }, () => this.draw());
    this.scope.value = "head";
    this.note = element("p.small.quiet");
    this.buttons = [0, 1, 2].map((n) =>
      makeButton("", () => {
        const cut = this.cuts[n];
        if (cut) app.runs.toggle(cut);
      }),
    );
    const buttons = element("div.cut-buttons", ...this.buttons);
    const title = element("h3", "Stop attention");
    this.box = element("div.notes-block.edge-cuts", title, this.scope, buttons, this.note);
    app.runs.on(() => this.draw());
  }

  /**
   * @param {[number, number]} queries
   * @param {[number, number]} keys
   * @returns {EdgeCut}
   */
  cut(queries, keys) {
    const { layer, head } = this.app.state;
    return { kind: "edges", layer, head: this.scope.value === "layer" ? null : head, queries, keys };
  }

  get layer() {
    const { text, layer } = this.app.state;
    return /** @type {Layer} */ (this.app.meta.texts[text].layers.find((one) => one.key === layer));
  }

  /** The same layer, whose rows and columns are words or sentences if the map's are. */
  get shown() {
    const { meta, state } = this.app;
    return inUnits(meta, this.layer, mapQuantity(meta, state));
  }

  /**
   * The token, or all tokens of its word or sentence: the first, and the one after the last.
   * @param {Axis} axis
   * @param {number} token
   * @returns {[number, number]}
   */
  span(axis, token) {
    const { shown } = this;
    const unit = unitAt(shown, axis, token);
    return [firstToken(shown, axis, unit), lastToken(shown, axis, unit) + 1];
  }

  /** The edge of the chosen cell; null if there is none to cut or to restore. */
  edgeCut() {
    const { row, col } = this.app.state;
    const cut = row < 0 || col < 0 ? null : this.cut(this.span("queries", row), this.span("keys", col));
    return cut && this.hidden && !this.app.runs.has(cut) ? null : cut;
  }

  /** @param {boolean} hidden */
  setHidden(hidden) {
    if (hidden === this.hidden) return;
    this.hidden = hidden;
    this.draw();
  }

  keyCut() {
    const { col } = this.app.state;
    return col < 0 ? null : this.cut([0, this.layer.rows], this.span("keys", col));
  }

  /** All edges in view; null if that is the whole map. */
  viewCut() {
    const { rows, cols } = this.layer;
    const { left, top, right, bottom } = this.frame();
    /** @type {(first: number, last: number, size: number) => [number, number]} */
    const span = (first, last, size) => [
      Math.min(size - 1, Math.max(0, Math.floor(first))),
      Math.max(1, Math.min(size, Math.ceil(last))),
    ];
    const [queries, keys] = [span(top, bottom, rows), span(left, right, cols)];
    const whole = queries[1] - queries[0] === rows && keys[1] - keys[0] === cols;
    return whole ? null : this.cut(queries, keys);
  }

  /** Follows the map when it is moved. */
  follow() {
    if (JSON.stringify(this.viewCut()) !== JSON.stringify(this.cuts[2])) this.draw();
  }

  draw() {
    const { app, shown } = this;
    const { text, row, col } = app.state;
    this.box.hidden = !app.runs.available;
    if (this.box.hidden) return;
    /** @param {Axis} axis @param {number} index */
    const token = (axis, index) =>
      `“${short(tokenAt(axisOf(app.meta, text, shown, axis), unitAt(shown, axis, index)), 10)}”`;
    const [edge, key, view] = [this.edgeCut(), this.keyCut(), this.viewCut()];
    this.cuts = [edge, key, view];
    this.scope.hidden = !edge && !key && !view;
    const spans = view ? [view.queries, view.keys].map(([first, end]) => `${first}–${end - 1}`) : [];
    const words = [
      () => `from ${token("queries", row)} to ${token("keys", col)}`,
      () => `from every token to ${token("keys", col)} (${unitAt(shown, "keys", col)})`,
      () => `in view: from tokens ${spans.join(" to tokens ")}`,
    ];
    this.buttons.forEach((button, n) => {
      const cut = this.cuts[n];
      button.hidden = cut === null;
      if (!cut) return;
      button.textContent = `${app.runs.has(cut) ? "Allow" : "Stop"} attention ${words[n]()}`;
      button.disabled = app.runs.running !== null;
    });
    this.note.textContent =
      edge || key
        ? "The model runs again. The weight becomes 0, and the query attends more to its other keys."
        : "Select a cell to stop its attention, or zoom in to stop all in view.";
    document.body.classList.toggle(
      "edges-cut",
      app.runs.cuts.some(({ kind }) => kind === "edges"),
    );
  }
}
