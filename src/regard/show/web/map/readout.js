// @ts-check
// The notes beside the large map: the weight under the pointer or the cursor, what the chosen query looks at,
// and what is known of the layer.

import { badge, element } from "../common/dom.js";
import { areWeights, quantityName, quantityTitle, spell } from "../common/quantity.js";
import { labelAt } from "../common/tokens.js";
import { firstToken } from "../common/units.js";
import { cellFacts, layerFacts, precisionNote, strongestKeys } from "./facts.js";

const RANKED = 8; // keys that are listed

/** The notes; it fills `root`. */
export class Readout {
  /**
   * @param {HTMLElement} root
   * @param {App} app
   */
  constructor(root, app) {
    this.app = app;
    this.number = element("p", { class: "big-number", id: "weight" });
    this.where = element("dl", { class: "facts" });
    this.note = element("p", { class: "small quiet" });
    this.ranked = element("div", { class: "notes-block" });
    this.about = element("div", { class: "notes-block" });
    const live = element("div", { class: "notes-block", "aria-live": "polite" });
    this.heading = element("h3");
    live.append(this.heading, this.number, this.where, this.note);
    root.append(live, this.ranked, this.about);
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
    const named = (axis, index) => {
      return `${index} ${labelAt(this.app.meta, state.text, layer, axis, index, 24)}`;
    };
    const { number: written, weight, facts, note } = cellFacts(cell, layer, named, quantity);
    this.heading.textContent = quantityTitle(quantity);
    this.number.textContent = written;
    if (weight === null) delete this.number.dataset.weight;
    else this.number.dataset.weight = String(weight);
    this.where.replaceChildren(...factRows(facts));
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
    /**
     * @param {Axis} axis
     * @param {number} index
     */
    const token = (axis, index) => labelAt(app.meta, state.text, layer, axis, index, 18);
    const list = element("ol", { class: "ranked" });
    for (const col of strongestKeys(weights, RANKED)) {
      const button = element(
        "button",
        { type: "button" },
        element("span", { class: "place", text: String(col) }),
        element("span", { class: "token", text: token("keys", col) }),
        element("span", { class: "weight", text: spell(quantity, weights[col]) }),
      );
      button.addEventListener("click", () => app.set({ col: firstToken(layer, "keys", col) }));
      list.append(element("li", {}, button));
    }
    const own = element("span", { class: "token", text: token("queries", state.row) });
    ranked.replaceChildren(
      element(
        "h3",
        {},
        `Query ${state.row} `,
        own,
        ` ${areWeights(quantity) ? "attends to" : "with each key"}`,
      ),
      list,
    );
  }

  /**
   * The layer: its certificate and its numbers.
   * @param {Layer} layer
   */
  showLayer(layer) {
    const list = element("dl", { class: "facts" }, ...factRows(layerFacts(layer)));
    const heading = element("h3", { text: `Layer ${layer.key}` });
    this.about.replaceChildren(heading, ...certificate(layer.evidence), list);
    const { precision } = this.app.meta;
    if (precision && !layer.live)
      this.about.append(element("p", { class: "small quiet", text: precisionNote(precision) }));
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
  const found = evidence.text.replace(/^(not )?certified:? ?(.)/, (_, not, first) => first.toUpperCase());
  return [
    badge(evidence),
    element("p", { class: "small quiet proof", text: `${meaning}${found.replace(/[^.]$/, "$&.")}` }),
  ];
}

/** @param {Fact[]} facts */
function factRows(facts) {
  return facts.flatMap(([name, value]) => [element("dt", { text: name }), element("dd", { text: value })]);
}
