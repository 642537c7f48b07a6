// @ts-check
// Where the colours of a map end, so that one scale suits a head at every zoom. It knows numbers, not tiles.

import { makeScale } from "./colours.js";
import { isSigned, PLAIN } from "./quantity.js";

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
