// @ts-check
// Where the colours of a map end, so that one scale suits a head at every zoom, and the small picture of a head in the
// same colours.

import { isSigned, PLAIN } from "../data/quantity.js";
import { overviewLevel, settings } from "../data/settings.js";
import { makeScale, ramp } from "./colours.js";
import { contextOf } from "./dom.js";
import { theme } from "./theme.js";

export const BEYOND = 0.005; // of a map's cells lie beyond the end of its colours
const UNIFORM = 4; // the colours end at this many times the mean at least, so that equal cells are never dark

/**
 * Where the colours of these numbers end, to two digits: all but `beyond` of them are smaller, whatever their signs,
 * and it is well above their mean, which is the weight of uniform attention. 0 if all are 0.
 * @param {Float32Array} values
 * @param {{ beyond?: number, most?: number }} [options] `most` is the greatest end
 */
export function scaleEnd(values, { beyond = BEYOND, most = Infinity } = {}) {
  const sizes = values.map(Math.abs).sort();
  const total = sizes.reduce((sum, size) => sum + size, 0);
  const quantile = sizes[Math.floor((1 - beyond) * (sizes.length - 1))] ?? 0;
  return roundedEnd(quantile, total / Math.max(1, sizes.length), most);
}

/**
 * The same for numbers of which each occurs `counts` times: quick where there are many of few kinds.
 * @param {Float32Array} values
 * @param {Uint32Array} counts
 * @param {{ beyond?: number, most?: number }} [options]
 */
export function countedScaleEnd(values, counts, { beyond = BEYOND, most = Infinity } = {}) {
  let [count, total] = [0, 0];
  counts.forEach((n, at) => {
    count += n;
    total += n * Math.abs(values[at]);
  });
  const order = [...values.keys()].filter((at) => counts[at]);
  order.sort((a, b) => Math.abs(values[a]) - Math.abs(values[b]));
  let left = Math.floor((1 - beyond) * (count - 1));
  const at = order.find((kind) => (left -= counts[kind]) < 0);
  return roundedEnd(at === undefined ? 0 : Math.abs(values[at]), total / Math.max(1, count), most);
}

/**
 * @param {number} quantile
 * @param {number} mean
 * @param {number} most
 */
function roundedEnd(quantile, mean, most) {
  return Math.min(most, Number(Math.max(UNIFORM * mean, quantile).toPrecision(2)));
}

/**
 * The scale of a map of `cols` keys whose colours end at `top`: a log scale begins below uniform attention, and that
 * of contributions at a thousandth of its end. A map of zeros has an end, too.
 * @param {string} scale "linear" or "log"
 * @param {number} top
 * @param {number} cols
 * @param {Quantity} [quantity]
 */
export function mapScale(scale, top, cols, quantity = PLAIN) {
  const end = top || 1;
  const floor = 10 ** Math.floor(Math.log10(0.3 / cols));
  const bottom = quantity.shade === "weights" ? Math.min(floor, end / 10) : end / 1000;
  return makeScale({ scale, top: end, bottom, signed: isSigned(quantity) });
}

/** The attention mass of each byte of a picture: 0 is hidden, else 1 + 254·√mass. */
const MASSES = Float32Array.from({ length: 256 }, (_, byte) => (Math.max(0, byte - 1) / 254) ** 2);

/**
 * The scale of the picture of a head. Lines of strong cells take more of a small picture than of the large map, so
 * that more of its cells lie beyond the end.
 * @param {Uint8Array} picture
 * @param {Pick<Layer, "rows" | "cols">} layer
 * @param {{ kind?: string, whole?: boolean }} [options] "linear" or "log"; whether the colours end at 1
 * @returns {ColourScale}
 */
export function thumbScale(picture, { rows, cols }, { kind = "linear", whole = false } = {}) {
  const { thumb } = settings;
  const counts = new Uint32Array(256);
  for (const byte of picture) counts[byte]++;
  counts[0] = 0; // hidden
  const cells = Math.max(thumb, Math.max(rows, cols) / 2 ** overviewLevel(rows, cols));
  const fitted = { beyond: (BEYOND * cells) / thumb, most: 1 };
  const top = whole ? 1 : countedScaleEnd(MASSES, counts, fitted);
  return mapScale(kind, top, Math.min(thumb, cols));
}

/**
 * Paints the picture of one head of a layer onto a canvas of its size.
 * @param {HTMLCanvasElement} canvas
 * @param {Thumbs} thumbs of the layer
 * @param {Layer} layer
 * @param {number} head
 * @param {Parameters<typeof thumbScale>[2]} [colours]
 */
export function paintHead(canvas, { pictures }, layer, head, colours) {
  const size = settings.thumb ** 2;
  const at = layer.heads.indexOf(head);
  const bytes = pictures.subarray(at * size, (at + 1) * size);
  const scale = thumbScale(bytes, layer, colours);
  const { pixels } = ramp(theme(), scale.signed);
  const shades = Uint32Array.from(MASSES, (value) => pixels[Math.round(255 * scale.at(value))]);
  const context = contextOf(canvas);
  const image = context.createImageData(settings.thumb, settings.thumb);
  const out = new Uint32Array(image.data.buffer);
  for (let i = 0; i < out.length; i++) out[i] = bytes[i] ? shades[bytes[i]] : 0;
  context.putImageData(image, 0, 0);
}
