// @ts-check
// The tokens as running text: point at one to shade the tokens that it attends to, or that attend to it.
// It knows one row or one column of weights at a time; the same colours as the map.

import { ArcLayer } from "../parts/arcs.js";
import { AttributionPanel } from "../parts/attribution_panel.js";
import { latest } from "../parts/controls.js";
import { element, onKeys } from "../parts/dom.js";
import { doubts } from "../data/layers.js";
import { isTower, layoutOf, NO_PATCHES, patchOf } from "../data/patch_layout.js";
import { areWeights, isSigned, quantityOf } from "../data/quantity.js";
import { firstToken, inUnits, lastToken, unitAt } from "../data/units.js";
import { exportMenu } from "../picture/menu.js";
import { PageView } from "../view.js";
import { makeTextControls } from "./controls.js";
import { strongestEdges, rankingLine, strongest } from "./ranking.js";
import { textFigure, weightRows } from "./exports.js";
import { beside } from "./layout.js";
import { HeadPictures } from "./head_pictures.js";
import { TextNotes } from "./notes.js";
import { axisOffsets, indexOnAxis, writtenText } from "./offsets.js";
import { outlierTokens, sharesByKind } from "./patches.js";
import { TextPredictions } from "./predictions.js";
import { layersInScope, scopeName, sinkInScope, weightsInScope, secondHead } from "./scope.js";
import { shadingTop } from "./shading.js";
import { TokenText } from "./token_text.js";

const RANKED = 5; // tokens in the list of a head
const FAINTEST = 0.02; // of the attention, below which an edge is not drawn

export class TextView extends PageView {
  /** @param {ViewPlace} place */
  constructor(...place) {
    super(...place);
    const { root, app } = this;
    this.controls = makeTextControls(this);
    this.said = element("p.text-said", { "aria-live": "polite" });
    this.notes = new TextNotes((token) => this.pin(token));
    this.attribution = new AttributionPanel(app);
    this.notes.box.append(this.attribution.box);
    this.page = new TokenText();
    this.predictions = new TextPredictions(app);
    this.written = writtenText(app.meta, this.state.text, this.layer);
    this.writtenName = ""; // which text the page shows
    this.at = -1; // the token that is pointed at
    this.under = -1; // the token under the pointer while another is pinned
    /** @type {Shaded | null} */
    this.shaded = null;
    /** @type {Shaded | null} */
    this.second = null; // of a second head
    /** @type {Map<number, number>} */
    this.outliers = new Map(); // patches that receive far more than others, with their mean weights
    this.heads = new HeadPictures(app);
    this.about = element("p.small.quiet.picture-about"); // how a picture's colours were found
    this.sheet = element("div.text-sheet", this.page.body);
    this.arcs = new ArcLayer(this.sheet);
    this.look = latest((fresh) => this.findWeights(fresh));
    const save = exportMenu(app, {
      name: () => `text-${this.state.text}${this.shaded ? `-token-${this.shaded.token}` : ""}`,
      picture: () => textFigure(this),
      table: () => weightRows(this),
    });
    this.controls.bar.append(save);
    const scroll = element("div.text-scroll", this.sheet, this.heads.box, this.about);
    const main = element("div.text-main", this.said, scroll, this.predictions.box);
    root.append(this.controls.bar, element("div.text-view", main, this.notes.box));
    this.listen();
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
    return inUnits(meta, this.captured, this.quantity);
  }

  /** The second head that is shown, or null. */
  get other() {
    return isSigned(this.quantity) ? null : secondHead(this.state, this.layers, this.captured);
  }

  /** Which of the keys are patches of pictures. */
  get layout() {
    const { app, state, layer } = this;
    return layer.units ? NO_PATCHES : layoutOf(app.meta, state.text, layer, "keys");
  }

  /** The token that a reader sees first: of a vision tower CLS. */
  get telling() {
    const { telling } = this.app.meta.texts[this.state.text];
    const { layer, written } = this;
    const [special] = this.layout.special;
    if (special && isTower(layer) && indexOnAxis(this.offsets, special[0]) >= 0) return special[0];
    const row = unitAt(layer, "queries", telling ?? -1);
    return written.queries + Math.max(0, Math.min(row, layer.rows - 1));
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
      this.shaded = this.second = null;
      this.draw();
      if (token >= 0)
        this.said.textContent = "This layer did not process that token in the captured forward pass.";
      return;
    }
    const outliers = looking ? await this.findOutliers() : new Map();
    // Looked at by: the sink's own column is what is asked for, so nothing is left out.
    const without = looking ? await this.leftOut(outliers) : new Set();
    const ask = looking ? this.app.source.row : this.app.source.column;
    const asked = quantity.shade === "logit" ? quantity.position : index; // contributions are of one query
    const other = this.other;
    const [weights, others] = await Promise.all([
      weightsInScope(ask, state, layer, layers, asked, quantity),
      other && ask(state.text, other.layer.key, other.head, asked, quantity),
    ]);
    if (!fresh()) return;
    const [from, signed] = [offsets.theirs, isSigned(quantity)];
    const { layout } = this;
    // Of a vision tower the colours suit the patches, whatever CLS and registers receive.
    const counts = (/** @type {number} */ one) =>
      !without.has(one) && (!isTower(layer) || patchOf(layout, one) !== null);
    const tops = [weights, ...(others ? [others] : [])].map((of) => shadingTop(of, from, counts));
    if (isTower(layer)) tops.push(3 / Math.max(3, weights.length)); // uniform attention stays pale
    const shades = { token, from, without, top: Math.max(...tops), signed }; // two heads share one scale
    this.shaded = { ...shades, weights };
    this.second = others && { ...shades, weights: others };
    this.outliers = outliers;
    this.draw();
    this.heads.show(state, layer, isTower(layer) ? layout : NO_PATCHES, looking, asked, from);
  }

  /** The patches of a vision tower that receive far more than others. */
  async findOutliers() {
    const { state, layer, app, written } = this;
    if (!isTower(layer)) return new Map();
    const rows = await app.headRows.layer(state.text, layer.key);
    return outlierTokens(rows, written.keys, state.scope === "head" ? state.head : undefined);
  }

  /**
   * The tokens that are to be left out of the shading: the outliers, or the sink.
   * @param {Map<number, number>} outliers
   * @returns {Promise<Set<number>>}
   */
  async leftOut(outliers) {
    if (this.state.sink !== "apart") return new Set();
    if (outliers.size) return new Set(outliers.keys());
    const shown = layersInScope(this.layers, this.layer, this.state.scope);
    const { keys } = this.written;
    const key = await sinkInScope(this.app.source, this.state, shown);
    return new Set(key === null ? [] : [unitAt(this.layer, "keys", key) + keys]);
  }

  draw() {
    this.page.paint(this.shaded, this.state.scale, this.second);
    for (const token of this.outliers.keys()) this.page.mark(token, "outlier");
    this.arcs.draw([...this.arcsOf(this.shaded, "first"), ...this.arcsOf(this.second, "second")]);
    this.tell();
  }

  /**
   * The strongest edges of the chosen token, as arcs from query to key.
   * @param {Shaded | null} shaded
   * @param {"first" | "second"} kind
   */
  arcsOf(shaded, kind) {
    if (!shaded) return [];
    const { spans } = this.page;
    const least = areWeights(this.quantity) ? FAINTEST : 0;
    return strongestEdges(strongest(shaded, RANKED), shaded, least).map(({ token, strength }) => {
      const [from, to] = this.looking ? [shaded.token, token] : [token, shaded.token];
      return { from: spans[from], to: spans[to], strength, kind };
    });
  }

  /** Says in words and numbers what the shades show. */
  tell() {
    const { shaded, looking, state, layer, quantity } = this;
    if (!shaded) {
      this.said.textContent = "…";
      this.notes.clear();
      return;
    }
    const tokens = layer.units ? this.written.tokens.map((one) => one.trim() || one) : this.written.tokens;
    const ranking = strongest(shaded, RANKED);
    const pinned = this.pinned >= 0;
    const other = pinned ? this.under : -1;
    const { predicted } = this.controls;
    const found = { tokens, shaded, ranking, looking, quantity };
    this.said.textContent = rankingLine(found, other, predicted);
    const doubt = doubts(layersInScope(this.layers, layer, state.scope));
    const scope = scopeName(state, layer, quantity.shade === "logit" ? "sum" : "mean");
    const second = this.second && this.other && this.secondFindings(this.second, this.other);
    const cut = this.cutWords();
    const pictured = this.page.patches.size > 0;
    const shares = pictured ? sharesByKind(shaded.weights, shaded.from, this.layout) : [];
    const { outliers } = this;
    this.notes.show({ ...found, pinned, scope, doubt, cut, second, pictured, shares, outliers });
  }

  /**
   * @param {Shaded} shaded
   * @param {{ layer: Layer, head: number }} other
   */
  secondFindings(shaded, { layer, head }) {
    return { scope: `Layer ${layer.key}, head ${head}`, shaded, ranking: strongest(shaded, RANKED) };
  }

  /** Says that the shown head is cut in this run; "" if it is not. */
  cutWords() {
    const { layer, head, scope } = this.state;
    if (scope !== "head" || !this.app.runs.has({ kind: "head", layer, head })) return "";
    return `Head ${layer}.${head} is cut in this run: it has these weights, but its output is zero.`;
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
    onKeys(body, (key) => this.press(key));
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
    const { layer, quantity } = this;
    this.controls.show();
    this.attribution.show(quantity);
    this.written = writtenText(this.app.meta, state.text, layer);
    const { tokens, second } = this.written;
    const name = `${state.text} ${tokens.length} ${second} ${layer.queries_of} ${layer.keys_of} ${quantity.units}`;
    if (this.writtenName !== name) {
      const { boundary } = this.app.meta.texts[state.text];
      this.page.write(
        { ...this.written, spaced: !layer.units },
        boundary === null
          ? null
          : unitAt(layer, "keys", boundary - (layer.keys_from ?? 0)) + this.written.keys,
      );
      const { pictures } = this.app.meta.texts[state.text];
      this.page.showPictures(tokens, this.layout, pictures);
      this.page.body.classList.toggle("tower", isTower(layer));
      this.about.textContent = this.page.patches.size ? (pictures?.about ?? "") : "";
      this.outliers = new Map();
      this.under = -1;
      this.at = this.telling;
      this.shaded = this.second = null;
      if (this.pinned >= 0) this.page.reveal(this.pinned);
      else this.page.revealWithin(this.at);
    }
    this.writtenName = name;
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
