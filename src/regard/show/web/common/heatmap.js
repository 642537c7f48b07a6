// A number for every head as a table of colours, layer by layer. It knows numbers, not what they mean.

import { css, inkOn } from "./colours.js";
import { element } from "./dom.js";

const WRITTEN = 16; // heads a layer up to which the numbers are written in the cells

/**
 * Makes the table. `choose(layer, head)` is called when the reader takes a cell. Fill it with
 * `fill(layers, {top, value(layer, at), say(x), brief(x), chosen})`: layers are {key, heads}, `at` counts heads.
 */
export function heatmap(label, choose) {
  const table = element("div", { class: "heat", role: "grid", "aria-label": label });
  let shape = "";
  let cells = []; // rows of {button, layer, head}

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
    const move = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
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

  table.fill = (layers, { top, value, say, brief, chosen = "" }) => {
    const wanted = JSON.stringify(layers.map((layer) => [layer.key, layer.heads]));
    if (wanted !== shape) build(layers);
    shape = wanted;
    let reachable = null;
    cells.forEach((row, y) =>
      row.forEach(({ button, layer, head }, x) => {
        const found = value(y, x);
        const known = found !== null && found !== undefined;
        const t = known ? Math.min(1, Math.max(0, found / top)) : 0;
        button.style.backgroundColor = known ? css(t) : "";
        button.style.color = known ? inkOn(t) : "";
        button.textContent = known ? brief(found) : "";
        button.classList.toggle("unknown", !known);
        button.setAttribute(
          "aria-label",
          `Layer ${layer}, head ${head}: ${known ? say(found) : "no number"}`,
        );
        button.title = button.getAttribute("aria-label");
        const own = `${layer}/${head}` === chosen;
        button.setAttribute("aria-selected", String(own));
        if (own) reachable = button;
        if (button.tabIndex === 0 && !chosen) reachable ??= button;
      }),
    );
    reachable ??= cells[0]?.[0]?.button;
    for (const { button } of cells.flat()) button.tabIndex = button === reachable ? 0 : -1;
  };
  return table;
}
