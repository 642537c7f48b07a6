// @ts-check
// What the Map view exports: the picture of this moment, and the numbers of its cells.

import { exportMenu } from "../picture/menu.js";
import { mapFigure, mapRows } from "./figure.js";

/**
 * The menu of a Map view.
 * @param {import("./map.js").MapView} view
 */
export function mapExports(view) {
  const { app, large } = view;
  return exportMenu(app, {
    name: () => `layer-${view.layer.key}-head-${app.state.head}${app.runs.edited ? "-edited" : ""}`,
    picture: () => mapFigure(app, large, (scene) => view.note(scene)),
    table: () => mapRows(large),
  });
}
