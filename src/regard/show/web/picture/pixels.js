// @ts-check
// The pixels of a canvas in a picture: as rectangles where they are few, so that a cell is a shape that can be chosen
// and recoloured, and as an image where they are many.

import { contextOf, element } from "../parts/dom.js";

const MOST_CELLS = 10000; // that are rectangles
const LARGE = 2400; // pixels of an image, at most, to either side
const OVERLAP = 0.2; // pixels under the next rectangle: seams would show the ground

/** @typedef {{ x: number, y: number, across: number, down: number }} CellPlaces of the first cell, and their size */

/**
 * As much of a canvas as a part needs, in whole pixels, and where it begins.
 * @param {HTMLCanvasElement} canvas
 * @param {Rectangle} part
 */
export function pixelsOf(canvas, { left, top, right, bottom }) {
  const [x, y] = [Math.max(0, Math.floor(left + 1e-6)), Math.max(0, Math.floor(top + 1e-6))];
  const width = Math.max(1, Math.min(canvas.width, Math.ceil(right - 1e-6)) - x);
  const height = Math.max(1, Math.min(canvas.height, Math.ceil(bottom - 1e-6)) - y);
  // Read from a copy: a canvas that is often read from would no longer be drawn quickly.
  const copy = new OffscreenCanvas(width, height).getContext("2d", { willReadFrequently: true });
  if (!copy) throw new Error("This browser cannot draw on a canvas.");
  copy.drawImage(canvas, x, y, width, height, 0, 0, width, height);
  const { data } = copy.getImageData(0, 0, width, height);
  return { left: x, top: y, image: { width, height, data } };
}

/**
 * The pixels as rectangles, by colour; neighbours of one colour share one. Null if they are too many.
 * @param {PixelImage} image
 * @param {CellPlaces} at
 */
export function cellPaths({ width, height, data }, { x, y, across, down }) {
  if (width * height > MOST_CELLS) return null;
  const words = new Uint32Array(data.buffer, data.byteOffset, width * height);
  /** @type {Map<number, [number, number, number, number][]>} */
  const byColour = new Map();
  for (let row = 0; row < height; row++) {
    for (let col = 0; col < width;) {
      const at = row * width + col;
      let end = col + 1;
      while (end < width && words[row * width + end] === words[at]) end++;
      if (data[4 * at + 3]) {
        const rectangles = byColour.get(words[at]) ?? [];
        byColour.set(words[at], rectangles);
        const right = end < width && data[4 * (row * width + end) + 3] ? OVERLAP : 0;
        const below = row + 1 < height && covered(data, width, row + 1, col, end) ? OVERLAP : 0;
        rectangles.push([x + col * across, y + row * down, (end - col) * across + right, down + below]);
      }
      col = end;
    }
  }
  return [...byColour].map(([word, rectangles]) => ({ colour: colourOf(word), rectangles }));
}

/**
 * A pixel's four bytes, as every machine that browsers run on orders them.
 * @param {number} word
 * @returns {Colour}
 */
function colourOf(word) {
  return [word & 255, (word >> 8) & 255, (word >> 16) & 255, (word >>> 24) / 255];
}

/**
 * Whether all pixels of a row from one column to before another are seen.
 * @param {Uint8ClampedArray} data
 * @param {number} width
 * @param {number} row
 * @param {number} first
 * @param {number} end
 */
function covered(data, width, row, first, end) {
  for (let col = first; col < end; col++) if (!data[4 * (row * width + col) + 3]) return false;
  return true;
}

/**
 * How many times an image should be enlarged, so that its pixels are sharp where it takes `wide` pixels of the page.
 * @param {PixelImage} image
 * @param {number} wide
 */
export function enlargement({ width, height }, wide) {
  const most = Math.floor(LARGE / Math.max(width, height));
  return Math.max(1, Math.min(Math.ceil((2 * wide) / width), most));
}

/**
 * An image as an address of data, with every pixel `by` times as large.
 * @param {PixelImage} image
 * @param {number} by
 */
export function encodeImage({ width, height, data }, by) {
  const canvas = element("canvas", { width, height });
  contextOf(canvas).putImageData(new ImageData(new Uint8ClampedArray(data), width, height), 0, 0);
  const large = element("canvas", { width: by * width, height: by * height });
  const context = contextOf(large);
  context.imageSmoothingEnabled = false;
  context.drawImage(canvas, 0, 0, large.width, large.height);
  return large.toDataURL("image/png");
}
