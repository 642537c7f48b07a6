// @ts-check
// The tokens as running text: point at one to shade the tokens that it attends to, or that attend to it.
// It knows one row or one column of weights at a time; the same colours as the map.

import { AttributionPanel } from "../common/attribution_panel.js";
import { headPicker, latest } from "../common/controls.js";
import { choice, element } from "../common/dom.js";
import { doubts, layerOf } from "../common/layers.js";
import { isSigned, quantityOf } from "../common/quantity.js";
import { quantityControls } from "../common/quantity_controls.js";
import { theme } from "../common/theme.js";
import { firstToken, inUnits, lastToken, unitAt } from "../common/units.js";
import { beside } from "./layout.js";
import { newText } from "./new_text.js";
import { TextNotes } from "./notes.js";
import { axisOffsets, indexOnAxis, writtenText } from "./offsets.js";
import { TextPredictions } from "./predictions.js";
import { rankingLine, strongest } from "./ranking.js";
import { layersInScope, scopeName, sinkInScope, weightsInScope } from "./scope.js";
import { shadingTop } from "./shading.js";
import { TokenText } from "./token_text.js";

const RANKED = 12; // tokens in the list

/**
 * @param {HTMLElement} root
 * @param {App} app
 * @returns {View}
 */
export function text(root, app) {
  const view = new TextView(app);
  root.append(...view.parts());
  return { show: (state) => view.show(state), hide: () => view.hide() };
}

class TextView {
  /** @param {App} app */
  constructor(app) {
    this.app = app;
    this.state = app.state;
    this.controls = makeTextControls(app, () => this.tell());
    this.said = element("p", { class: "text-said", "aria-live": "polite" });
    this.notes = new TextNotes((token) => this.pin(token));
    this.attribution = new AttributionPanel(app);
    this.notes.box.append(this.attribution.box);
    this.page = new TokenText();
    this.predictions = new TextPredictions(app);
    this.written = writtenText(app.meta, this.state.text, this.layer);
    this.writtenName = ""; // which text the page shows
    this.theme = ""; // and in which theme
    this.at = -1; // the token that is pointed at
    this.under = -1; // the token under the pointer while another is pinned
    /** @type {Shaded | null} */
    this.shaded = null;
    this.look = latest((fresh) => this.findWeights(fresh));
    this.listen();
  }

  parts() {
    const more = this.app.meta.can.capture ? newText(this.app) : "";
    const scroll = element("div", { class: "text-scroll" }, more, this.page.body);
    return [
      this.controls.bar,
      element(
        "div",
        { class: "text-view" },
        element("div", { class: "text-main" }, this.said, scroll, this.predictions.box),
        this.notes.box,
      ),
    ];
  }

  /** Whether the chosen token is a query; contributions are always to what follows one. */
  get looking() {
    return this.state.direction !== "by" || this.quantity.shade === "logit";
  }

  get quantity() {
    return quantityOf(this.app.meta, this.state);
  }

  /** The layer, whose rows and columns are units of the quantity: what is a token here may be a word. */
  get layer() {
    const { meta } = this.app;
    return inUnits(meta, layerOf(meta, this.state.text, this.state.layer), this.quantity);
  }

  get layers() {
    return this.app.meta.texts[this.state.text].layers;
  }

  get offsets() {
    return axisOffsets(this.written, this.layer, this.looking);
  }

  /** The token that is pinned, or -1. */
  get pinned() {
    const { state, layer, quantity } = this;
    const row = quantity.shade === "logit" ? quantity.position : state.row;
    const index = this.looking ? unitAt(layer, "queries", row) : unitAt(layer, "keys", state.col);
    return index >= 0 ? index + this.offsets.mine : -1;
  }

  /** The token that the keyboard is at, or -1. */
  get current() {
    if (this.pinned < 0) return this.at;
    return this.under >= 0 ? this.under : this.pinned;
  }

  /**
   * Finds the weights of the chosen token and shows them.
   * @param {() => boolean} fresh
   */
  async findWeights(fresh) {
    const token = this.pinned >= 0 ? this.pinned : this.at;
    const { offsets, looking, state, layer, layers, quantity } = this;
    const after = lastToken(layer, "queries", token - this.written.queries) + (layer.queries_from ?? 0);
    const own = quantity.shade === "logit" ? quantity.position + (layer.queries_from ?? 0) : after;
    const position = token < 0 || !layer.units ? token : own;
    this.predictions.show(state.text, position, layer.queries_of === "tokens" && !this.written.second);
    const index = indexOnAxis(offsets, token);
    if (index < 0) {
      this.shaded = null;
      this.draw();
      if (token >= 0)
        this.said.textContent = "This layer did not process that token in the captured forward pass.";
      return;
    }
    // Looked at by: the sink's own column is what is asked for, so nothing is left out.
    const without = looking ? await this.sinkToken() : -1;
    const ask = looking ? this.app.source.row : this.app.source.column;
    const asked = quantity.shade === "logit" ? quantity.position : index; // contributions are of one query
    const weights = await weightsInScope(ask, state, layer, layers, asked, quantity);
    if (!fresh()) return;
    const from = offsets.theirs;
    const top = shadingTop(weights, from, without);
    this.shaded = { token, weights, from, without, top, signed: isSigned(quantity) };
    this.draw();
  }

  /** The token that is to be left out of the shading, or -1. */
  async sinkToken() {
    if (this.state.sink !== "apart") return -1;
    const shown = layersInScope(this.layers, this.layer, this.state.scope);
    const { keys } = this.written;
    const key = await sinkInScope(this.app.source, this.state, shown);
    return key === null ? -1 : unitAt(this.layer, "keys", key) + keys;
  }

  draw() {
    this.page.paint(this.shaded, this.state.scale);
    this.tell();
  }

  /** Says in words and numbers what the shades show. */
  tell() {
    const { shaded, looking, state, layer, quantity } = this;
    if (!shaded) {
      this.said.textContent =
        this.at < 0 ? "Point at a token, or use the arrow keys. Click or press Enter to pin it." : "…";
      this.notes.clear();
      return;
    }
    const tokens = layer.units ? this.written.tokens.map((one) => one.trim() || one) : this.written.tokens;
    const ranking = strongest(shaded, RANKED);
    const pinned = this.pinned >= 0;
    const other = pinned ? this.under : -1;
    const { predicted } = this.controls;
    this.said.textContent = rankingLine(tokens, shaded, ranking, looking, other, quantity, predicted);
    const doubt = doubts(layersInScope(this.layers, layer, state.scope));
    const scope = scopeName(state, layer, quantity.shade === "logit" ? "sum" : "mean");
    this.notes.show({ tokens, shaded, ranking, looking, pinned, scope, quantity, doubt });
  }

  /** @param {number} token */
  point(token) {
    if (this.pinned >= 0) {
      this.under = token;
      this.page.pointAt(token);
      if (this.shaded) this.tell();
      return;
    }
    if (token === this.at || token < 0) return;
    this.at = token;
    this.page.pointAt(token);
    this.look();
  }

  /** @param {number} token */
  pin(token) {
    const index = indexOnAxis(this.offsets, token);
    if (index < 0) return;
    this.under = -1;
    this.at = token;
    const first = firstToken(this.layer, this.looking ? "queries" : "keys", index);
    this.app.set(this.looking ? { row: first, col: -1 } : { col: first, row: -1 });
    this.page.reveal(token);
  }

  unpin() {
    this.app.set({ row: -1, col: -1 });
    this.under = -1;
  }

  /** @param {number} token */
  toggle(token) {
    if (token === this.pinned) this.unpin();
    else this.pin(token);
  }

  listen() {
    const { body } = this.page;
    body.addEventListener("pointerover", (event) => {
      const token = this.page.tokenOf(event);
      if (token >= 0) this.point(token);
    });
    body.addEventListener("pointerleave", () => this.pinned >= 0 && this.point(-1));
    body.addEventListener("click", (event) => {
      const token = this.page.tokenOf(event);
      if (token >= 0) this.toggle(token);
    });
    body.addEventListener("keydown", (event) => {
      if (event.altKey || event.ctrlKey || event.metaKey) return;
      if (this.press(event.key)) event.preventDefault();
    });
    body.addEventListener("focus", () => {
      if (this.pinned < 0 && this.at < 0) this.point(Math.max(0, this.offsets.mine));
    });
  }

  /**
   * Does what a key asks for; says whether there was something to do.
   * @param {string} key
   */
  press(key) {
    const { spans } = this.page;
    const to = neighbour(key, this.current, spans);
    if (to !== null) {
      const token = Math.min(spans.length - 1, Math.max(0, to));
      this.point(token);
      this.page.reveal(token);
    } else if (key === "Enter" || key === " ") this.toggle(this.current);
    else if (key === "Escape") this.unpin();
    else return false;
    return true;
  }

  /** @param {State} state */
  show(state) {
    this.state = state;
    const { looking, layer, quantity } = this;
    this.controls.show(state, looking, new Set(this.layers.map((one) => one.stack)).size, quantity);
    this.attribution.show(state, quantity);
    this.written = writtenText(this.app.meta, state.text, layer);
    const { tokens, second } = this.written;
    const name = `${state.text} ${tokens.length} ${second} ${layer.queries_of} ${quantity.units}`;
    if (this.writtenName !== name) {
      const { boundary } = this.app.meta.texts[state.text];
      this.page.write(
        { ...this.written, spaced: !layer.units },
        boundary === null
          ? null
          : unitAt(layer, "keys", boundary - (layer.keys_from ?? 0)) + this.written.keys,
      );
      this.at = this.under = -1;
      this.shaded = null;
    } else if (this.theme !== theme()) this.page.forgetColours();
    [this.writtenName, this.theme] = [name, theme()];
    if (this.pinned >= 0) this.at = this.pinned;
    this.page.select(this.pinned);
    this.look();
  }

  hide() {
    this.under = -1;
  }
}

/**
 * The token that a key goes to, which may lie outside of the text; null for other keys.
 * @param {string} key
 * @param {number} current the token that the keyboard is at, or -1
 * @param {HTMLElement[]} spans
 * @returns {number | null}
 */
function neighbour(key, current, spans) {
  const here = Math.max(0, current);
  if (key === "ArrowRight") return current < 0 ? 0 : here + 1;
  if (key === "ArrowLeft") return here - 1;
  if (key === "ArrowDown") return beside(spans, here, 1);
  if (key === "ArrowUp") return beside(spans, here, -1);
  if (key === "Home") return 0;
  if (key === "End") return spans.length - 1;
  return null;
}

/**
 * @param {App} app
 * @param {() => void} changed when there is more to say
 */
function makeTextControls(app, changed) {
  const picker = headPicker(app);
  const quantities = quantityControls(app, "text", changed);
  const direction = choice(
    "Shade",
    "text-way",
    { at: "what it attends to", by: "what attends to it" },
    (value) => app.set({ direction: value, row: -1, col: -1 }),
    "Choose a query to shade the keys that it attends to, or a key to shade the queries that attend to it.",
  );
  const scope = choice(
    "Of",
    "text-of",
    { head: "one head", layer: "the layer", all: "all layers" },
    (value) => app.set({ scope: value }),
    "The weights of one head, or their mean over the heads of the layer or of all layers.",
  );
  const sink = choice(
    "Sink",
    "text-sink",
    { in: "shown", apart: "left out" },
    (value) => app.set({ sink: value }),
    "Left out leaves the key that receives the most attention unshaded, so that the others stand out.",
  );
  const scale = choice(
    "Scale",
    "text-scale",
    { linear: "linear", log: "log" },
    (value) => app.set({ scale: value }),
    "A log scale also shows small weights.",
  );
  return {
    bar: element(
      "div",
      { class: "bar-of-choices" },
      picker,
      ...quantities.parts,
      direction,
      scope,
      sink,
      scale,
    ),
    /** The token that contributions are of, in quotes. */
    get predicted() {
      return quantities.predicted;
    },
    /**
     * @param {State} state
     * @param {boolean} looking
     * @param {number} stacks how many the text has
     * @param {Quantity} quantity
     */
    show(state, looking, stacks, quantity) {
      quantities.show(state, quantity);
      picker.show(state, { heads: state.scope === "head", layers: state.scope !== "all" || stacks > 1 });
      direction.value = looking ? "at" : "by";
      scope.value = state.scope;
      sink.value = state.sink;
      scale.value = state.scale;
      sink.hidden = !looking;
      direction.hidden = quantity.shade === "logit";
    },
  };
}
