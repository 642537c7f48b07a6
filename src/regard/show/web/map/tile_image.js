// @ts-check
// A tile's numbers as pixels, and where their colours end as tiles come and the map moves.

import { settings } from "../data/settings.js";
import { contextOf } from "../parts/dom.js";
import { scaleEnd } from "../parts/map_scale.js";

/**
 * The tile as a canvas of one pixel a cell. Hidden cells stay transparent.
 * @param {PaintedTile} tile
 * @param {Look} look
 */
export function painted(tile, look) {
  if (tile.canvas && tile.style === look.style) return tile.canvas;
  const { rows, cols } = tile;
  const values = look.reduce === "max" ? tile.max : tile.mass;
  tile.canvas ??= Object.assign(document.createElement("canvas"), { width: cols, height: rows });
  const context = contextOf(tile.canvas);
  const image = context.createImageData(cols, rows);
  const out = new Uint32Array(image.data.buffer);
  const { pixels, scale } = look;
  tile.clipped = false;
  for (let n = 0; n < values.length; n++) {
    if (tile.max[n] < 0) continue;
    out[n] = pixels[Math.round(255 * scale.at(values[n]))];
    tile.clipped ||= Math.abs(values[n]) > scale.top * 1.01; // the rounded numbers of a saved page are within 1%
  }
  context.putImageData(image, 0, 0);
  tile.style = look.style;
  return tile.canvas;
}

const MOST_FITTED = 512 * 512; // cells that a scale is fitted to: all of a map's overview

/**
 * Where a scale that fits a frame should end (see `scaleEnd`). `drawn` is what the pyramid covers the frame with; the
 * cells of the key `without` are left out, if it is not -1; no number is above `most`.
 * @param {DrawnTile[]} drawn
 * @param {Rectangle} frame
 * @param {string} reduce
 * @param {number} without
 * @param {number} [most]
 */
export function fitTop(drawn, frame, reduce, without, most = 1) {
  /** @type {number[]} */
  const found = [];
  // One step for all tiles: else the cells of small tiles, at the end of the text, would count more than others.
  const cells = drawn.reduce((sum, { tile }) => sum + (tile ? tile.rows * tile.cols : 0), 0);
  const step = Math.ceil(cells / MOST_FITTED) | 1;
  for (const { tile, z, i, j } of drawn) {
    if (!tile) continue;
    const size = 2 ** z;
    const from = (/** @type {number} */ edge, /** @type {number} */ first) =>
      Math.floor(edge / size) - first * settings.tile;
    const [top, left] = [Math.max(0, from(frame.top, i)), Math.max(0, from(frame.left, j))];
    const bottom = Math.min(tile.rows, from(frame.bottom, i) + 1);
    const right = Math.min(tile.cols, from(frame.right, j) + 1);
    const values = reduce === "max" ? tile.max : tile.mass;
    const skipped = without < 0 ? -1 : from(without, j);
    for (let y = top, n = 0; y < bottom; y++) {
      for (let x = left; x < right; x++, n++) {
        const at = y * tile.cols + x;
        if (n % step === 0 && tile.max[at] >= 0 && x !== skipped) found.push(values[at]);
      }
    }
  }
  return found.length ? scaleEnd(Float32Array.from(found), { most }) : 1;
}

const NEAR = 1.3; // the colours hold still while the best end is within this factor

/** The end of a scale that fits what is seen, and holds still while it about fits. */
export class ColourFit {
  constructor() {
    this.name = ""; // what it was fitted to
    this.top = 1;
    this.sure = false; // whether all of it was there
    this.asked = true; // whether to look again, because more came or another part is seen
  }

  /**
   * Fits the end to what is seen, if that is due.
   * @param {string} name of the head, the level and what cells show
   * @param {{ drawn: DrawnTile[], complete: boolean }} cover
   * @param {() => number} best computes the best end
   */
  update(name, { drawn, complete }, best) {
    const due = name !== this.name || (this.asked && complete);
    if (!due || !drawn.some((one) => one.tile)) return;
    const top = best();
    const near = this.name === name && this.sure && top < this.top * NEAR && top > this.top / NEAR;
    if (!near) this.top = top;
    Object.assign(this, { name, asked: false, sure: complete });
  }
}
