// @ts-check
// A number for every head as a table of colours, layer by layer. It knows numbers, not what they mean.

import { known } from "./arrays.js";
import { css, inkOn } from "./colours.js";
import { ARROWS, element } from "./dom.js";

const WRITTEN = 16; // heads a layer up to which the numbers are written in the cells

/** @typedef {{ key: string, heads: number[] }} HeatmapLayer */

/**
 * @typedef {object} HeatmapOptions
 * @property {number} top the number at the end of the colours
 * @property {(y: number, x: number) => number | null | undefined} value
 * @property {(value: number) => string} say
 * @property {(value: number) => string} brief
 * @property {string} [chosen] layer/head
 */

/**
 * Makes the table. `choose(layer, head)` is called when the reader takes a cell. Fill it with
 * `fill(layers, {top, value(layer, at), say(x), brief(x), chosen})`: layers are {key, heads}, `at` counts heads.
 * @param {string} label
 * @param {(layer: string, head: number) => void} [choose]
 */
export function heatmap(label, choose) {
  const table = element("div", { class: "heat", role: "grid", "aria-label": label });
  let shape = "";
  /** @type {{ button: HTMLButtonElement, layer: string, head: number }[][]} */
  let cells = []; // rows of {button, layer, head}

  /** @param {HeatmapLayer[]} layers */
  function build(layers) {
    const most = Math.max(...layers.map((layer) => layer.heads.length));
    table.classList.toggle("unwritten", most > WRITTEN);
    table.style.setProperty("--heads", String(most));
    cells = layers.map((layer) =>
      layer.heads.map((head) => {
        const button = element("button", {
          class: "heat-cell",
          type: "button",
          role: "gridcell",
          tabindex: "-1",
        });
        button.addEventListener("click", () => choose?.(layer.key, head));
        return { button, layer: layer.key, head };
      }),
    );
    table.replaceChildren(
      ...layers.map((layer, y) =>
        element(
          "div",
          { class: "heat-row", role: "row" },
          element("span", {
            class: "heat-label",
            role: "rowheader",
            text: layer.key,
            title: `Layer ${layer.key}`,
          }),
          ...cells[y].map(({ button }) => button),
        ),
      ),
    );
  }

  table.addEventListener("keydown", (event) => {
    const move = ARROWS[event.key];
    if (!move) return;
    event.preventDefault();
    const y = cells.findIndex((row) => row.some(({ button }) => button === document.activeElement));
    if (y < 0) return;
    const x = cells[y].findIndex(({ button }) => button === document.activeElement);
    const row = cells[Math.min(cells.length - 1, Math.max(0, y + move[0]))];
    const next = row[Math.min(row.length - 1, Math.max(0, x + move[1]))].button;
    for (const { button } of cells.flat()) button.tabIndex = button === next ? 0 : -1;
    next.focus();
  });

  /**
   * @param {HeatmapLayer[]} layers
   * @param {HeatmapOptions} options
   */
  const fill = (layers, { top, value, say, brief, chosen = "" }) => {
    const wanted = JSON.stringify(layers.map((layer) => [layer.key, layer.heads]));
    if (wanted !== shape) build(layers);
    shape = wanted;
    /** @type {HTMLButtonElement | undefined} */
    let reachable;
    cells.forEach((row, y) =>
      row.forEach(({ button, layer, head }, x) => {
        const found = value(y, x);
        const t = known(found) ? Math.min(1, Math.max(0, found / top)) : 0;
        button.style.backgroundColor = known(found) ? css(t) : "";
        button.style.color = known(found) ? inkOn(t) : "";
        button.textContent = known(found) ? brief(found) : "";
        button.classList.toggle("unknown", !known(found));
        button.setAttribute(
          "aria-label",
          `Layer ${layer}, head ${head}: ${known(found) ? say(found) : "no number"}`,
        );
        button.title = button.ariaLabel ?? "";
        const own = `${layer}/${head}` === chosen;
        button.setAttribute("aria-selected", String(own));
        if (own) reachable = button;
        if (button.tabIndex === 0 && !chosen) reachable ??= button;
      }),
    );
    reachable ??= cells[0]?.[0]?.button;
    for (const { button } of cells.flat()) button.tabIndex = button === reachable ? 0 : -1;
  };
  return Object.assign(table, { fill });
}
