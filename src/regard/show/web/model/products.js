// @ts-check
// Matrix products, where nearly all the time of the model goes by.

import { dotProducts } from "../source/arithmetic/products.js";
import { makeSimdProduct } from "./simd_products.js";

const FEW = 8; // rows of x for which copying w into WebAssembly's memory takes longer than it saves
const simdProduct = makeSimdProduct();

/**
 * y[r, c] = Σ_k x[r, k] · w[c, k]: every row of x with every row of w. Few rows, and all where there is no WebAssembly,
 * are multiplied here.
 * @param {WideMatrix} x
 * @param {NarrowMatrix} w
 * @param {WideMatrix} y
 * @param {number} rows of x and y
 * @param {number} columns of y, the rows of w
 * @param {number} depth numbers in a row of x and w
 */
export function multiply(x, w, y, rows, columns, depth) {
  if (simdProduct && rows >= FEW) return simdProduct(x, w, y, rows, columns, depth);
  for (let row = 0; row < rows; row++) {
    const [at, to] = [x.at + row * x.step, y.at + row * y.step];
    dotProducts(x.data, at, w.data, w.at, w.step, depth, y.data, to, columns);
  }
}
