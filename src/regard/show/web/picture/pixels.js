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
 * An image with every pixel many times as large: most programs smooth what they enlarge, whatever they are told.
 * @param {PixelImage} image
 * @param {number} wide pixels of the page that it takes
 * @returns {PixelImage}
 */
export function enlarged({ width, height, data }, wide) {
  const by = Math.max(
    1,
    Math.min(Math.ceil((2 * wide) / width), Math.floor(LARGE / Math.max(width, height))),
  );
  if (by === 1) return { width, height, data };
  const words = new Uint32Array(data.buffer, data.byteOffset, width * height);
  const out = new Uint32Array(width * by * height * by);
  for (let y = 0; y < height; y++) {
    const first = y * by * width * by;
    for (let x = 0; x < width; x++) out.fill(words[y * width + x], first + x * by, first + (x + 1) * by);
    for (let again = 1; again < by; again++)
      out.copyWithin(first + again * width * by, first, first + width * by);
  }
  return { width: width * by, height: height * by, data: new Uint8ClampedArray(out.buffer) };
}

/**
 * An image as an address of data.
 * @param {PixelImage} image
 */
export function encodeImage({ width, height, data }) {
  const canvas = element("canvas", { width, height });
  contextOf(canvas).putImageData(new ImageData(new Uint8ClampedArray(data), width, height), 0, 0);
  return canvas.toDataURL("image/png");
}
