// @ts-check
// What the Map view exports: the picture of this moment, and the numbers of its cells.

import { clamp } from "../data/arrays.js";
import { settings } from "../data/settings.js";
import { exportMenu } from "../picture/menu.js";
import { cellRows, mapFigure } from "./figure.js";

/**
 * The menu of a Map view.
 * @param {import("./map.js").MapView} view
 */
export function mapExports(view) {
  const { app, large } = view;
  return exportMenu(app, {
    name: () => `layer-${view.layer.key}-head-${app.state.head}${app.runs.edited ? "-edited" : ""}`,
    picture: () => mapFigure(app, large, (scene) => view.note(scene)),
    table: async () => cellRows(await cellsIn(app, large.scene())),
  });
}

/**
 * A promise of {values, rows, cols, row, col, size, layer, meta, text} for a scene (see `canvas.js`).
 * @param {App} app
 * @param {Scene} scene
 * @returns {Promise<RegionCells>}
 */
export async function cellsIn(app, { camera, z, state, layer, look, quantity }) {
  const side = settings.tile;
  const size = 2 ** z;
  const { left, top, right, bottom } = camera.frame;
  /** @type {(value: number, all: number) => number} */
  const edge = (value, all) => clamp(value, 0, Math.ceil(all / size));
  const [x0, x1] = [edge(Math.floor(left / size), layer.cols), edge(Math.ceil(right / size), layer.cols)];
  const [y0, y1] = [edge(Math.floor(top / size), layer.rows), edge(Math.ceil(bottom / size), layer.rows)];
  const cols = x1 - x0;
  const values = new Float32Array((y1 - y0) * cols);
  const tileOf = (/** @type {number} */ cell) => Math.floor(cell / side);
  for (let i = tileOf(y0); i <= tileOf(y1 - 1); i++) {
    for (let j = tileOf(x0); j <= tileOf(x1 - 1); j++) {
      const tile = await app.source.tile(state.text, layer.key, state.head, z, i, j, { quantity });
      for (let y = Math.max(y0, i * side); y < Math.min(y1, i * side + tile.rows); y++) {
        for (let x = Math.max(x0, j * side); x < Math.min(x1, j * side + tile.cols); x++) {
          const at = (y - i * side) * tile.cols + x - j * side;
          const value = look.reduce === "max" ? Math.max(0, tile.max[at]) : tile.mass[at];
          values[(y - y0) * cols + x - x0] = value;
        }
      }
    }
  }
  return {
    values,
    rows: y1 - y0,
    cols,
    row: y0 * size,
    col: x0 * size,
    size,
    layer,
    meta: app.meta,
    text: state.text,
  };
}
