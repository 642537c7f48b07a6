// @ts-check
// Which part of a map is seen, a middle (in keys and queries) and a zoom (pixels a token), and where its cells lie on the
// canvas. It knows geometry; it does not know what is drawn.

import { clamp } from "../data/arrays.js";
import { unitAt } from "../data/units.js";

const CLOSEST = 96; // pixels a cell

export class Camera {
  constructor() {
    this.T = 1; // queries, and
    this.S = 1; // keys, of the map
    this.width = 1; // pixels of the picture
    this.height = 1;
    this.x = 0.5; // the middle of the picture, in keys and
    this.y = 0.5; // queries
    this.zoom = 1; // pixels a token
  }

  /** The zoom at which the whole map is seen. */
  get whole() {
    return Math.min(this.width / this.S, this.height / this.T);
  }

  get closest() {
    return Math.max(CLOSEST, this.whole);
  }

  get isWhole() {
    return this.zoom <= this.whole * 1.0001;
  }

  /** The part of the map in the picture, in tokens; it may reach beyond the map. */
  get frame() {
    const [w, h] = [this.width / this.zoom / 2, this.height / this.zoom / 2];
    return { left: this.x - w, top: this.y - h, right: this.x + w, bottom: this.y + h };
  }

  fit() {
    Object.assign(this, { x: this.S / 2, y: this.T / 2, zoom: this.whole });
    this.settle();
  }

  /** Keeps the zoom in its bounds and the map in the picture. */
  settle() {
    this.zoom = Math.min(this.closest, Math.max(this.whole, this.zoom || 0));
    const [w, h] = [this.width / this.zoom / 2, this.height / this.zoom / 2];
    // A map smaller than the picture stands at its upper left.
    this.x = this.S <= 2 * w ? w : Math.min(this.S - w, Math.max(w, this.x));
    this.y = this.T <= 2 * h ? h : Math.min(this.T - h, Math.max(h, this.y));
  }

  /** @param {Point} by pixels */
  pan([dx, dy]) {
    this.x -= dx / this.zoom;
    this.y -= dy / this.zoom;
    this.settle();
  }

  /**
   * Zooms so that what is under the point (pixels in the picture) stays there.
   * @param {number} factor
   * @param {Point} point
   */
  zoomAt(factor, [px, py]) {
    const [col, row] = this.at([px, py]);
    this.zoom = Math.min(this.closest, Math.max(this.whole, this.zoom * factor));
    this.x = col - (px - this.width / 2) / this.zoom;
    this.y = row - (py - this.height / 2) / this.zoom;
    this.settle();
  }

  /**
   * Moves as little as needed to bring a cell into the picture.
   * @param {{ row: number, col: number }} cell
   */
  reveal({ row, col }) {
    const { left, top, right, bottom } = this.frame;
    if (col < left) this.x -= left - col;
    else if (col + 1 > right) this.x += col + 1 - right;
    if (row < top) this.y -= top - row;
    else if (row + 1 > bottom) this.y += row + 1 - bottom;
    this.settle();
  }

  /**
   * The place [col, row] under a point, with fractions.
   * @param {Point} point
   * @returns {Point}
   */
  at([px, py]) {
    return [this.x + (px - this.width / 2) / this.zoom, this.y + (py - this.height / 2) / this.zoom];
  }

  /**
   * The point of a place [col, row].
   * @param {Point} place
   * @returns {Point}
   */
  point([col, row]) {
    return [(col - this.x) * this.zoom + this.width / 2, (row - this.y) * this.zoom + this.height / 2];
  }
}

/** @typedef {Pick<Layer, "rows" | "cols">} MapShape */
/** @typedef {Pick<Scene, "width" | "height" | "gutter" | "pixel">} MapLayout */

const LOW = 330; // pixels of a room below which the labels of its keys are short
const NARROW = 560; // pixels

/**
 * The sizes of the canvas and its gutters.
 * @param {Size} room
 * @param {number} ratio the screen's pixels for one of the page
 * @returns {MapLayout}
 */
export function mapLayout({ width, height }, ratio) {
  const narrow = width < NARROW;
  const gutter = { left: narrow ? 74 : 112, top: narrow || height < LOW ? 74 : 96 };
  return { width, height, gutter, pixel: 1 / ratio };
}

/**
 * The cell of level z under a point of the picture, or null outside of the map.
 * @param {Camera} camera
 * @param {MapShape} layer
 * @param {Point} point
 * @param {number} z
 * @returns {Cell | null}
 */
export function cellAt(camera, { rows, cols }, point, z) {
  const size = 2 ** z;
  const [col, row] = camera.at(point).map((place) => Math.floor(place / size) * size);
  if (Math.min(...point) < 0 || col < 0 || row < 0 || col >= cols || row >= rows) return null;
  return { row, col, size };
}

/**
 * The cell that lies some cells of `size` tokens away from the chosen one; the middle of the picture's part
 * of the map if none is chosen.
 * @param {{ row: number, col: number } | null} chosen
 * @param {Point} move columns and rows
 * @param {number} size
 * @param {Rectangle} frame
 * @param {MapShape} layer
 */
export function cellBeside(chosen, [dx, dy], size, { left, top, right, bottom }, { rows, cols }) {
  const col = chosen ? chosen.col + dx * size : Math.floor((left + Math.min(cols, right)) / 2);
  const row = chosen ? chosen.row + dy * size : Math.floor((top + Math.min(rows, bottom)) / 2);
  return { col: clamp(col, 0, cols - 1), row: clamp(row, 0, rows - 1) };
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
