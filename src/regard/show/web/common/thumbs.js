// @ts-check
// The small picture of a head, in the colours that its large map has.

import { ramp } from "./colours.js";
import { contextOf } from "./dom.js";
import { BEYOND, countedScaleEnd, mapScale } from "./map_scale.js";
import { PLAIN } from "./quantity.js";
import { settings } from "./settings.js";
import { theme } from "./theme.js";
import { overviewLevel } from "./tile.js";

const DIFFERENCE = { ...PLAIN, against: 0 };

/** The attention mass of each byte of a picture: 0 is hidden, else 1 + 254·√mass. */
const MASSES = Float32Array.from({ length: 256 }, (_, byte) => (Math.max(0, byte - 1) / 254) ** 2);

/** The difference of masses of each byte: 0 is hidden, else 128 ± 127·√|difference|. */
const DIFFERENCES = Float32Array.from({ length: 256 }, (_, byte) => {
  const root = (byte - 128) / 127;
  return Math.sign(root) * root ** 2;
});

/**
 * @typedef {object} ThumbOptions
 * @property {boolean} [signed] whether pictures are of differences
 * @property {string} [kind] "linear" or "log"
 * @property {boolean} [whole] whether the colours end at 1
 */

/**
 * The scale that pictures of heads share. Lines of strong cells take more of a small picture than of the large map, so
 * that more of its cells lie beyond the end.
 * @param {Uint8Array[]} pictures
 * @param {Pick<Layer, "rows" | "cols">} layer
 * @param {ThumbOptions} [options]
 * @returns {ColourScale}
 */
export function thumbScale(
  pictures,
  { rows, cols },
  { signed = false, kind = "linear", whole = false } = {},
) {
  const { thumb } = settings;
  const values = signed ? DIFFERENCES : MASSES;
  const counts = new Uint32Array(256);
  for (const bytes of pictures) for (const byte of bytes) counts[byte]++;
  counts[0] = 0; // hidden
  const cells = Math.max(thumb, Math.max(rows, cols) / 2 ** overviewLevel(rows, cols));
  const fitted = { beyond: (BEYOND * cells) / thumb, most: 1 };
  const top = whole ? 1 : countedScaleEnd(values, counts, fitted);
  return mapScale(kind, top, Math.min(thumb, cols), signed ? DIFFERENCE : PLAIN);
}

/**
 * Paints a picture onto a canvas of its size.
 * @param {HTMLCanvasElement} canvas
 * @param {Uint8Array} bytes
 * @param {ColourScale} scale
 * @param {ThemeName} [name]
 */
export function paintThumb(canvas, bytes, scale, name = theme()) {
  const { pixels } = ramp(name, scale.signed);
  const values = scale.signed ? DIFFERENCES : MASSES;
  const colours = Uint32Array.from(values, (value) => pixels[Math.round(255 * scale.at(value))]);
  const context = contextOf(canvas);
  const image = context.createImageData(settings.thumb, settings.thumb);
  const out = new Uint32Array(image.data.buffer);
  for (let i = 0; i < out.length; i++) out[i] = bytes[i] ? colours[bytes[i]] : 0;
  context.putImageData(image, 0, 0);
}
