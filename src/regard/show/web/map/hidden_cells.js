// @ts-check
// Whether a picture holds cells that the mask hides.

import { settings } from "../common/settings.js";
import { hidesCells } from "./legend.js";

/**
 * Whether a cell in the picture is hidden by the mask.
 * @param {Pick<Scene, "drawn" | "camera">} scene
 */
export function hasHidden({ drawn, camera }) {
  const { left, top, right, bottom } = camera.frame;
  return drawn.some(({ tile, z, i, j }) => {
    if (!tile || !hidesCells(tile)) return false;
    const size = 2 ** z;
    const first = { row: i * settings.tile, col: j * settings.tile };
    for (let n = 0; n < tile.max.length; n++) {
      if (tile.max[n] >= 0) continue;
      const row = (first.row + Math.floor(n / tile.cols)) * size;
      const col = (first.col + (n % tile.cols)) * size;
      if (row + size > top && row < bottom && col + size > left && col < right) return true;
    }
    return false;
  });
}
