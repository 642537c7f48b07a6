// @ts-check
// A number for every head as a table of colours, layer by layer. It knows numbers, not what they mean.

import { known } from "../data/arrays.js";
import { headBeside } from "../data/layers.js";
import { colourCell } from "./colours.js";
import { ARROWS, element } from "./dom.js";

const WRITTEN = 16; // heads a layer up to which the numbers are written in the cells

/** @typedef {{ key: string, heads: number[] }} HeadTableLayer */

/**
 * @typedef {object} HeadTableOptions
 * @property {number} top the number at the end of the colours
 * @property {(y: number, x: number) => number | null | undefined} value
 * @property {(value: number) => string} say
 * @property {(value: number) => string} brief
 * @property {string} [chosen] layer/head
 * @property {(layer: string, head: number) => string} [about] more to say of a head in its tooltip
 * @property {(layer: string, head: number) => boolean} [isCut] whether a head is cut in the run that is shown
 * @property {boolean} [signed] whether numbers may be below 0: their colours then diverge
 * @property {{ name: string, value: (y: number) => number | null }} [beside] a number for each layer as a whole
 */

/** @typedef {{ button: HTMLButtonElement, layer: string, head: number }} HeatmapCell */

/**
 * Makes the table. `choose(layer, head)` is called when the reader takes a cell. Fill it with
 * `fill(layers, {top, value(layer, at), say(x), brief(x), chosen})`: layers are {key, heads}, `at` counts heads.
 * @param {string} label
 * @param {(layer: string, head: number) => void} choose
 * @param {{ numbered?: boolean }} [options] whether the numbers of the heads stand over the table
 */
export function headTable(label, choose, { numbered = false } = {}) {
  const table = element("div.heat", { role: "grid", "aria-label": label });
  let shape = "";
  /** @type {HeadTableLayer[]} */
  let shown = [];
  /** @type {HeatmapCell[][]} */
  let cells = [];
  /** @param {HTMLButtonElement | undefined} button the only one that can be reached with Tab */
  const reach = (button) => {
    for (const cell of cells.flat()) cell.button.tabIndex = cell.button === button ? 0 : -1;
  };
  const fill = (/** @type {HeadTableLayer[]} */ layers, /** @type {HeadTableOptions} */ options) => {
    const wanted = JSON.stringify(layers.map((layer) => [layer.key, layer.heads]));
    if (wanted !== shape) {
      cells = build(table, layers, choose);
      if (numbered) table.prepend(headNumbers(layers));
    }
    [shape, shown] = [wanted, layers];
    cells.forEach((row, y) => row.forEach((cell, x) => paint(cell, options.value(y, x), options)));
    if (options.beside) showBeside(table, layers, options, options.beside);
    const all = cells.flat();
    const chosen = all.find(({ layer, head }) => `${layer}/${head}` === options.chosen);
    const before = options.chosen ? undefined : all.find(({ button }) => button.tabIndex === 0);
    reach((chosen ?? before ?? all[0])?.button);
  };
  table.addEventListener("keydown", (event) => {
    const move = ARROWS[event.key];
    if (!move) return;
    event.preventDefault();
    const all = cells.flat();
    const from = all.find(({ button }) => button === document.activeElement);
    if (!from) return;
    const to = headBeside(shown, from, move);
    const next = all.find(({ layer, head }) => layer === to.layer && head === to.head)?.button;
    reach(next);
    next?.focus();
  });
  return Object.assign(table, { fill });
}

/**
 * Fills a table with a row for each layer.
 * @param {HTMLElement} table
 * @param {HeadTableLayer[]} layers
 * @param {(layer: string, head: number) => void} choose
 */
function build(table, layers, choose) {
  const most = Math.max(...layers.map((layer) => layer.heads.length));
  table.classList.toggle("unwritten", most > WRITTEN);
  table.style.setProperty("--heads", String(most));
  const cells = layers.map(({ key, heads }) =>
    heads.map((head) => {
      const attributes = { class: "heat-cell", type: "button", role: "gridcell", tabindex: "-1" };
      const button = element("button", { ...attributes, "data-head": `${key}/${head}` });
      button.addEventListener("click", () => choose(key, head));
      return { button, layer: key, head };
    }),
  );
  const rows = layers.map(({ key }, y) => {
    const label = element("span.heat-label", { role: "rowheader", title: `Layer ${key}` }, key);
    const buttons = cells[y].map(({ button }) => button);
    return element("div.heat-row", { role: "row", "aria-label": `Layer ${key}` }, label, ...buttons);
  });
  table.replaceChildren(...rows);
  return cells;
}

/**
 * The numbers of the heads, over the layer that has the most; those of other layers may differ.
 * @param {HeadTableLayer[]} layers
 */
function headNumbers(layers) {
  const { heads } = layers.reduce((most, layer) => (layer.heads.length > most.heads.length ? layer : most));
  const numbers = heads.map((head) => element("span", { role: "columnheader" }, head));
  const corner = element("span.heat-label", { role: "presentation" }, "layer");
  return element("div.heat-row.heat-numbers", { role: "row" }, corner, ...numbers);
}

/**
 * @param {HeatmapCell} cell
 * @param {number | null | undefined} value
 * @param {HeadTableOptions} options
 */
function paint({ button, layer, head }, value, options) {
  const { top, say, brief, chosen, about, isCut, signed = false } = options;
  colour(button, value, top, signed);
  button.textContent = known(value) ? brief(value) : "";
  button.classList.toggle("unknown", value !== undefined && !known(value)); // what is being computed is plain
  const cut = isCut?.(layer, head) ?? false;
  button.classList.toggle("cut", cut);
  const said = known(value) ? say(value) : value === undefined ? "not computed yet" : "no number";
  const name = `Layer ${layer}, head ${head}${cut ? ", cut in this run" : ""}: ${said}`;
  button.setAttribute("aria-label", name);
  button.title = about ? `${name}. ${about(layer, head)}`.trim() : name;
  button.setAttribute("aria-selected", String(`${layer}/${head}` === chosen));
}

/**
 * @param {HTMLElement} cell
 * @param {number | null | undefined} value
 * @param {number} top
 * @param {boolean} signed
 */
function colour({ style }, value, top, signed) {
  const share = known(value) ? Math.min(1, Math.max(signed ? -1 : 0, value / top)) : null;
  colourCell(style, share === null || !signed ? share : (1 + share) / 2, signed);
}

/**
 * The number of each layer as a whole, at the end of its row.
 * @param {HTMLElement} table
 * @param {HeadTableLayer[]} layers
 * @param {HeadTableOptions} options
 * @param {NonNullable<HeadTableOptions["beside"]>} beside
 */
function showBeside(table, layers, { top, say, brief, signed = false }, { name, value }) {
  table.classList.add("with-beside");
  table.querySelectorAll(".heat-beside").forEach((cell) => cell.remove());
  table.querySelectorAll(".heat-row").forEach((row, y) => {
    const own = value(y);
    if (own === null) return;
    const title = `Layer ${layers[y].key}, ${name}: ${say(own)}`;
    const cell = element("span.heat-cell.heat-beside", { role: "gridcell", title }, brief(own));
    colour(cell, own, top, signed);
    row.append(cell);
  });
}
