// @ts-check
// What rounding changed in a saved page, in sentences: of its stored queries and keys, and of the model in it.

import { percent } from "./format.js";

/**
 * By how much a saved page's weights are off, rounded up to one digit.
 * @param {NonNullable<Meta["precision"]>} precision
 */
export function precisionNote({ absolute, rows }) {
  const points = Math.max(100 * absolute, 1e-4);
  const digit = 10 ** Math.floor(Math.log10(points));
  const off = Number((Math.ceil(points / digit) * digit).toPrecision(1));
  return (
    `This file stores rounded queries and keys. Its weights are within ${off} percentage points of the ` +
    `library's, measured on up to ${rows} queries of every head.`
  );
}

/**
 * What rounding the model's weights changed, measured when the page was written.
 * @param {Rounding} rounding
 */
export function roundingNote({ losses, same, score }) {
  const found = [
    ...(losses ? [`the loss is ${losses[1].toFixed(3)} instead of ${losses[0].toFixed(3)}`] : []),
    ...(same === null ? [] : [`${percent(same)} of the likeliest next tokens are the same`]),
    `scores of heads are within ${(100 * score).toFixed(1)} percentage points`,
  ];
  return `The model in this file has rounded weights: ${found.join(", ")}.`;
}
