// @ts-check
// What is shown, as files: PNG and SVG of the picture, CSV and NPY of its numbers.

import { contextOf, element } from "../common/dom.js";
import { tokenAt, visible } from "../common/tokens.js";
import { drawFigure, figureSize } from "./figure.js";
import { SvgContext } from "./svg.js";

/** @typedef {{ scene: Scene, words: FigureWords, name: string }} Shown what there is to export */

const SHARP = 3; // pixels of a PNG for one of the page

/**
 * A button with a menu. `shown()` gives {scene, words, name}; `numbers()` a promise of
 * {values, rows, cols, row, col, size, layer, meta, text}: the cells in the picture, from `row` and `col` on.
 * @param {App} app
 * @param {() => Shown} shown
 * @param {() => Promise<RegionCells>} numbers
 */
export function exportMenu(app, shown, numbers) {
  /** @type {Record<string, [string, () => Promise<Blob>]>} */
  const kinds = {
    PNG: ["bitmap", async () => png(shown())],
    SVG: ["vectors", async () => svg(shown())],
    CSV: ["numbers in view", async () => csv(await numbers())],
    NPY: ["numbers in view", async () => npy(await numbers())],
  };
  const summary = element("summary", { class: "button", text: "Export" });
  const menu = element("details", { class: "menu" }, summary);
  const list = element("div", { class: "menu-list", role: "menu" });
  for (const [kind, [what, make]] of Object.entries(kinds)) {
    const button = element("button", { type: "button", role: "menuitem", class: "plain" }, kind, " ");
    button.append(element("span", { class: "quiet", text: what }));
    button.addEventListener("click", async () => {
      menu.open = false;
      try {
        download(await make(), `${shown().name}.${kind.toLowerCase()}`);
      } catch (error) {
        app.status(`The ${kind} could not be exported: ${error.message}`);
      }
    });
    list.append(button);
  }
  menu.append(list);
  menu.addEventListener("keydown", (event) => {
    if (event.key === "Escape") {
      menu.open = false;
      summary.focus();
    }
  });
  addEventListener("pointerdown", (event) => {
    if (!(event.target instanceof Node && menu.contains(event.target))) menu.open = false;
  });
  return menu;
}

/**
 * @param {Blob} blob
 * @param {string} name
 */
function download(blob, name) {
  const link = element("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

/** @param {Shown} what */
function rendered({ scene, words }) {
  const { width, height } = figureSize(scene, words);
  const canvas = element("canvas", { width: width * SHARP, height: height * SHARP });
  const context = contextOf(canvas);
  context.scale(SHARP, SHARP);
  drawFigure(context, { ...scene, pixel: 1 / SHARP }, words);
  return canvas;
}

/**
 * @param {Shown} what
 * @returns {Promise<Blob>}
 */
function png(what) {
  return new Promise((done, failed) => {
    /** @param {Blob | null} blob */
    const finish = (blob) => (blob ? done(blob) : failed(new Error("the picture is too large")));
    rendered(what).toBlob(finish, "image/png");
  });
}

/** @param {Shown} what */
function svg({ scene, words }) {
  const { width, height } = figureSize(scene, words);
  const context = new SvgContext(width, height);
  drawFigure(context, scene, words);
  return new Blob([context.toString()], { type: "image/svg+xml" });
}

/**
 * A line for each row of cells; the first two columns name it, the first two lines name the columns.
 * @param {RegionCells} cells
 */
function csv({ values, rows, cols, row, col, size, layer, meta, text }) {
  /**
   * @param {Axis} axis
   * @param {number} index
   */
  const named = (axis, index) => quoted(visible(tokenAt(meta, text, layer, axis, index)));
  const keys = Array.from({ length: cols }, (_, x) => col + x * size);
  const tokens = keys.map((key) => named("keys", key));
  const lines = [["query", "token", ...keys].join(","), ["", "", ...tokens].join(",")];
  for (let y = 0; y < rows; y++) {
    const numbers = Array.from(values.subarray(y * cols, (y + 1) * cols), String);
    lines.push([row + y * size, named("queries", row + y * size), ...numbers].join(","));
  }
  return new Blob([lines.join("\r\n"), "\r\n"], { type: "text/csv" });
}

/**
 * Quoted, and never a formula to a program that opens it.
 * @param {string} text
 */
function quoted(text) {
  const safe = /^[=+\-@]/.test(text) ? `'${text}` : text;
  return `"${safe.replace(/"/g, '""').toWellFormed?.() ?? safe.replace(/"/g, '""')}"`;
}

/**
 * NumPy's own format, version 1.0.
 * @param {RegionCells} cells
 */
function npy({ values, rows, cols }) {
  const words = `{'descr': '<f4', 'fortran_order': False, 'shape': (${rows}, ${cols}), }`;
  const header = `${words}${" ".repeat(63 - ((10 + words.length) % 64))}\n`;
  const magic = [0x93, 0x4e, 0x55, 0x4d, 0x50, 0x59, 1, 0];
  const start = new Uint8Array([...magic, header.length & 255, header.length >> 8]);
  return new Blob([start, header, values], { type: "application/octet-stream" });
}
