// @ts-check
// What the Map view exports: the picture of this moment, and the numbers of its cells.

import { exportMenu } from "../picture/menu.js";
import { cellsCsv, cellsNpy, mapFigure } from "./figure.js";
import { cellsIn } from "./region.js";

/**
 * The menu of a Map view.
 * @param {import("./map.js").MapView} view
 */
export function mapExports(view) {
  const { app, large } = view;
  const cells = () => cellsIn(app, large.scene(), large.pyramid.without);
  return exportMenu(app, {
    name: () => `layer-${view.layer.key}-head-${app.state.head}${app.runs.edited ? "-edited" : ""}`,
    picture: () => mapFigure(app, large, (scene) => `${view.note(scene)} ${view.caption.said}`.trim()),
    numbers: { CSV: async () => cellsCsv(await cells()), NPY: async () => cellsNpy(await cells()) },
  });
}
