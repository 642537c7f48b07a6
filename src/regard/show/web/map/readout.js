// @ts-check
// The notes beside the large map: the weight under the pointer or the cursor, what the chosen query looks at, and what
// is known of the layer and of the file.

import { asSentence, exact } from "../data/format.js";
import { maskWords } from "../data/layers.js";
import { precisionNote, roundingNote } from "../data/rounding.js";
import { areWeights, PLAIN, quantityName, quantityTitle, spell } from "../data/quantity.js";
import { axisOf, labelAt } from "../data/tokens.js";
import { firstToken, UNIT } from "../data/units.js";
import { badge, element, termList, tokenLine } from "../parts/dom.js";

const RANKED = 8; // keys that are listed

/** The notes; it fills `root`. */
export class Readout {
  /**
   * @param {HTMLElement} root
   * @param {App} app
   */
  constructor(root, app) {
    this.app = app;
    this.number = element("p.big-number", { id: "weight" });
    this.where = element("dl.facts");
    this.note = element("p.small.quiet");
    this.ranked = element("div.notes-block");
    this.about = element("div.notes-block");
    this.heading = element("h3");
    const parts = [this.heading, this.number, this.where, this.note];
    root.append(element("div.notes-block", { "aria-live": "polite" }, ...parts), this.ranked, this.about);
    this.cellShown = "";
    this.rowAsked = "";
  }

  /**
   * One cell, or null. `size` 1 is a single weight.
   * @param {State} state
   * @param {Layer} layer
   * @param {Quantity} quantity
   * @param {CellWeights | null} cell
   */
  showCell(state, layer, quantity, cell) {
    const name = JSON.stringify([state.text, layer.key, state.head, quantity, cell]);
    if (name === this.cellShown) return;
    this.cellShown = name;
    /** @type {(axis: Axis, index: number) => string} */
    const named = (axis, index) =>
      `${index} ${labelAt(axisOf(this.app.meta, state.text, layer, axis), index, 24)}`;
    const { number: written, weight, facts, note } = cellFacts(cell, layer, named, quantity);
    this.heading.textContent = quantityTitle(quantity);
    this.number.textContent = written;
    if (weight === null) delete this.number.dataset.weight;
    else this.number.dataset.weight = String(weight);
    this.number.title = String(weight ?? ""); // with all of its digits
    this.where.replaceChildren(...termList(facts));
    this.note.textContent = note;
    if (!this.app.runs.isCut(cell, layer)) return;
    this.number.textContent = "cut";
    this.note.textContent = "In this edited run, this query cannot attend to this key.";
  }

  /**
   * What the chosen query looks at most.
   * @param {State} state
   * @param {Layer} layer
   * @param {Quantity} quantity
   */
  async showRow(state, layer, quantity) {
    const { app, ranked } = this;
    const key = [state.text, state.layer, state.head, state.row, quantityName(quantity)].join(" ");
    if (key === this.rowAsked) return;
    this.rowAsked = key;
    ranked.hidden = state.row < 0;
    if (state.row < 0) return;
    const weights = await app.source.row(state.text, state.layer, state.head, state.row, quantity);
    if (key !== this.rowAsked) return;
    const token = (/** @type {Axis} */ axis, /** @type {number} */ index) =>
      labelAt(axisOf(app.meta, state.text, layer, axis), index, 18);
    const lines = strongestKeys(weights, RANKED).map((col) => {
      const weight = element("span.weight", spell(quantity, weights[col]));
      const choose = () => app.set({ col: firstToken(layer, "keys", col) });
      return element("li", tokenLine(col, token("keys", col), weight, choose));
    });
    const own = element("span.token", token("queries", state.row));
    ranked.replaceChildren(
      element("h3", `Query ${state.row} `, own, ` ${areWeights(quantity) ? "attends to" : "with each key"}`),
      element("ol.ranked", ...lines),
    );
  }

  /**
   * The layer: its certificate and its numbers.
   * @param {Layer} layer
   */
  showLayer(layer) {
    const list = element("dl.facts", ...termList(layerFacts(layer)));
    const heading = element("h3", `Layer ${layer.key}`);
    this.about.replaceChildren(heading, ...certificate(layer.evidence), list);
    const { precision, rounding } = this.app.meta;
    const rounded = [
      ...(precision && !layer.live ? [precisionNote(precision)] : []),
      ...(rounding ? [roundingNote(rounding)] : []),
    ];
    this.about.append(...rounded.map((text) => element("p.small.quiet", text)));
  }
}

/**
 * Whether the map shows what the model computed, and what that means.
 * @param {Evidence} evidence
 */
function certificate(evidence) {
  const axes = evidence.unplaced
    ? "Rows and columns are those of the call, and not known to be tokens. "
    : "";
  const meaning = evidence.certified
    ? `These are the weights that the model used: with its values they give its own attention output. ${axes}`
    : "These may not be the weights that the model used. ";
  const found = asSentence(evidence.text.replace(/^(not )?certified:? ?/, ""));
  return [badge(evidence), element("p.small.quiet.proof", meaning + found)];
}

/**
 * @typedef {object} CellFacts
 * @property {string} number
 * @property {number | null} weight the same as a number, if there is one
 * @property {Fact[]} facts
 * @property {string} note
 */

/**
 * What is to be read of a cell; `named(axis, index)` gives a token with its number.
 * @param {CellWeights | null} cell
 * @param {Pick<Layer, "rows" | "cols" | "mask">} layer
 * @param {(axis: Axis, index: number) => string} named
 * @param {Quantity} [quantity]
 * @returns {CellFacts}
 */
export function cellFacts(cell, layer, named, quantity = PLAIN) {
  if (!cell) {
    const note = "Point at a cell, or select one with the arrow keys.";
    return { number: "–", weight: null, facts: [], note };
  }
  const { row, col, size, mass, max } = cell;
  const hidden = max < 0;
  const [number, weight] = hidden ? ["hidden", null] : [spell(quantity, mass), mass];
  const isWeight = areWeights(quantity);
  const masked = `The mask (${layer.mask}) hides ${size === 1 ? "this key from this query" : "these keys from these queries"}.`;
  if (size === 1) {
    /** @type {Fact[]} */
    const facts = [
      ["query", named("queries", row)],
      ["key", named("keys", col)],
    ];
    const unit = UNIT[quantity.units];
    const pooling = `Summed over the tokens of the key’s ${unit}, averaged over those of the query’s ${unit}.`;
    return { number, weight, facts, note: hidden ? masked : quantity.units === "tokens" ? "" : pooling };
  }
  const range = (/** @type {number} */ first, /** @type {number} */ all) =>
    `${first}–${Math.min(first + size, all) - 1}`;
  return {
    number,
    weight,
    facts: [
      ["queries", range(row, layer.rows)],
      ["keys", range(col, layer.cols)],
      ...(isWeight ? [/** @type {Fact} */ (["max", hidden ? "–" : spell(quantity, max)])] : []),
    ],
    note: hidden
      ? masked
      : `${isWeight ? "Attention mass: the weights summed" : "Summed"} over these keys, averaged over these queries.`,
  };
}

/**
 * The keys with the largest numbers of a row, whatever their signs, largest first; those without any are left out.
 * @param {Float32Array} weights
 * @param {number} most
 */
export function strongestKeys(weights, most) {
  const size = weights.map(Math.abs);
  const order = [...size.keys()].sort((a, b) => size[b] - size[a]).slice(0, most);
  return order.filter((key) => size[key] > 0);
}

/**
 * The numbers of a layer.
 * @param {Layer} layer
 */
export function layerFacts(layer) {
  /** @type {Fact[]} */
  const facts = [
    ["module", layer.name || "–"],
    ["mask", maskWords(layer)],
    ...(layer.bias ? [/** @type {Fact} */ (["position bias", layer.bias])] : []),
    ["score scale", exact(layer.scale)],
    ["queries × keys", [layer.rows, layer.cols].map((n) => n.toLocaleString("en")).join(" × ")],
    ["heads", layer.heads.length + (layer.group > 1 ? `, on ${layer.kv_heads} key/value heads` : "")],
    ["head width", String(layer.width)],
  ];
  if (layer.recurrence) facts.push(["recurrence", layer.recurrence]);
  if (layer.softcap) facts.push(["soft cap", String(layer.softcap)]);
  if (layer.sinks) facts.push(["sink logit", "one learned logit for each head"]);
  return facts;
}
