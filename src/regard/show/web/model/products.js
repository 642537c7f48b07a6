// @ts-check
// Matrix products, where nearly all the time of the model goes by.

import { makeSimdProduct } from "./simd_products.js";

const FEW = 8; // rows of x for which copying w into WebAssembly's memory takes longer than it saves
const simdProduct = makeSimdProduct();

/**
 * y[r, c] = Σ_k x[r, k] · w[c, k]: every row of x with every row of w.
 * Few rows, and all where there is no WebAssembly, are multiplied here, four rows of w at a time.
 * @param {WideMatrix} x
 * @param {NarrowMatrix} w
 * @param {WideMatrix} y
 * @param {number} rows of x and y
 * @param {number} columns of y, the rows of w
 * @param {number} depth numbers in a row of x and w
 */
export function multiply(x, w, y, rows, columns, depth) {
  if (simdProduct && rows >= FEW) return simdProduct(x, w, y, rows, columns, depth);
  for (let column = 0; column < columns; column += 4) {
    const wide = Math.min(4, columns - column);
    // Beyond the last row of w the last one is taken again, and its product is written over by itself.
    const first = w.at + column * w.step;
    const second = first + (wide > 1 ? w.step : 0);
    const third = second + (wide > 2 ? w.step : 0);
    const fourth = third + (wide > 3 ? w.step : 0);
    const places = [0, Math.min(1, wide - 1), Math.min(2, wide - 1), wide - 1];
    for (let row = 0; row < rows; row++) {
      const at = y.at + row * y.step + column;
      single(x.data, x.at + row * x.step, w.data, first, second, third, fourth, depth, y.data, at, places);
    }
  }
}

/**
 * One row of x times four rows of w.
 * @param {Float64Array} x
 * @param {number} top
 * @param {Float32Array} w
 * @param {number} first
 * @param {number} second
 * @param {number} third
 * @param {number} fourth
 * @param {number} depth
 * @param {Float64Array} y
 * @param {number} at
 * @param {number[]} places
 */
function single(x, top, w, first, second, third, fourth, depth, y, at, places) {
  let a = 0;
  let b = 0;
  let c = 0;
  let d = 0;
  for (let k = 0; k < depth; k++) {
    const u = x[top + k];
    a += u * w[first + k];
    b += u * w[second + k];
    c += u * w[third + k];
    d += u * w[fourth + k];
  }
  y[at + places[0]] = a;
  y[at + places[1]] = b;
  y[at + places[2]] = c;
  y[at + places[3]] = d;
}
