// @ts-check
// Places on the large map: its sizes in the room that there is, the cell under a point, the cell beside one.

import { unitAt } from "../common/units.js";
import { STRIP, STRIP_GAP } from "./heatmap.js";

/** @typedef {Pick<Layer, "rows" | "cols">} MapShape */
/** @typedef {Pick<Scene, "width" | "height" | "gutter" | "pixel">} MapLayout */

const LOW = 330; // pixels of a room below which the labels of its keys are short
const NARROW = 560; // pixels

/**
 * The sizes of the canvas and its gutters. With the sink apart, its strip stands beside the map.
 * @param {Size} room
 * @param {boolean} apart
 * @param {number} ratio the screen's pixels for one of the page
 * @returns {MapLayout}
 */
export function mapLayout({ width, height }, apart, ratio) {
  const narrow = width < NARROW;
  const labels = narrow ? 74 : 112;
  const gutter = {
    labels,
    left: labels + (apart ? STRIP + STRIP_GAP : 0),
    top: narrow || height < LOW ? 74 : 96,
  };
  return { width, height, gutter, pixel: 1 / ratio };
}

/**
 * The cell of level z under a point of the picture, or null outside of the map.
 * @param {import("./camera.js").Camera} camera
 * @param {MapShape} layer
 * @param {Point} point
 * @param {number} z
 * @returns {Cell | null}
 */
export function cellAt(camera, { rows, cols }, [px, py], z) {
  const size = 2 ** z;
  const [col, row] = camera.at(px, py).map((place) => Math.floor(place / size) * size);
  if (px < 0 || py < 0 || col < 0 || row < 0 || col >= cols || row >= rows) return null;
  return { row, col, size };
}

/**
 * The cell that lies some cells of `size` tokens away from the chosen one; the middle of the picture's part
 * of the map if none is chosen.
 * @param {{ row: number, col: number } | null} chosen
 * @param {[number, number]} move columns and rows
 * @param {number} size
 * @param {Rectangle} frame
 * @param {MapShape} layer
 */
export function cellBeside(chosen, [dx, dy], size, { left, top, right, bottom }, { rows, cols }) {
  /**
   * @param {number} first
   * @param {number} last
   */
  const middle = (first, last) => Math.floor((first + last) / 2);
  const col = chosen ? chosen.col + dx * size : middle(left, Math.min(cols, right));
  const row = chosen ? chosen.row + dy * size : middle(top, Math.min(rows, bottom));
  /**
   * @param {number} value
   * @param {number} all
   */
  const within = (value, all) => Math.min(all - 1, Math.max(0, value));
  return { col: within(col, cols), row: within(row, rows) };
}

/**
 * The first generated token on both axes, if there is one.
 * @param {Pick<TextMeta, "boundary">} text
 * @param {Pick<Layer, "keys_from" | "queries_from" | "units">} layer
 */
export function boundaryOf({ boundary }, layer) {
  const { keys_from, queries_from } = layer;
  if (boundary === null || keys_from === null || queries_from === null) return null;
  return {
    key: unitAt(layer, "keys", boundary - keys_from),
    query: unitAt(layer, "queries", boundary - queries_from),
  };
}
