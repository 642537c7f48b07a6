// @ts-check
// Matrix products, where nearly all the time of the model goes by.

/**
 * y[r, c] = Σ_k x[r, k] · w[c, k]: every row of x with every row of w.
 * Two rows of x and four of w at a time keep the processor busy: each number that is read is used several times.
 * @param {WideMatrix} x
 * @param {NarrowMatrix} w
 * @param {WideMatrix} y
 * @param {number} rows of x and y
 * @param {number} columns of y, the rows of w
 * @param {number} depth numbers in a row of x and w
 */
export function multiply(x, w, y, rows, columns, depth) {
  for (let column = 0; column < columns; column += 4) {
    const wide = Math.min(4, columns - column);
    // Beyond the last row of w the last one is taken again, and its product is written over by itself.
    const first = w.at + column * w.step;
    const second = first + (wide > 1 ? w.step : 0);
    const third = second + (wide > 2 ? w.step : 0);
    const fourth = third + (wide > 3 ? w.step : 0);
    const places = [0, Math.min(1, wide - 1), Math.min(2, wide - 1), wide - 1];
    let row = 0;
    for (; row + 1 < rows; row += 2) {
      const at = y.at + row * y.step + column;
      pair(x, x.at + row * x.step, w.data, first, second, third, fourth, depth, y, at, places);
    }
    if (row < rows) {
      const at = y.at + row * y.step + column;
      single(x.data, x.at + row * x.step, w.data, first, second, third, fourth, depth, y.data, at, places);
    }
  }
}

/**
 * Two rows of x times four rows of w.
 * @param {WideMatrix} x
 * @param {number} top where the first of the two rows begins
 * @param {Float32Array} w
 * @param {number} first
 * @param {number} second
 * @param {number} third
 * @param {number} fourth
 * @param {number} depth
 * @param {WideMatrix} y
 * @param {number} at
 * @param {number[]} places of the four products in a row of y
 */
function pair(x, top, w, first, second, third, fourth, depth, y, at, places) {
  const { data } = x;
  const bottom = top + x.step;
  let a = 0;
  let b = 0;
  let c = 0;
  let d = 0;
  let e = 0;
  let f = 0;
  let g = 0;
  let h = 0;
  for (let k = 0; k < depth; k++) {
    const u = data[top + k];
    const v = data[bottom + k];
    const p = w[first + k];
    const q = w[second + k];
    const r = w[third + k];
    const s = w[fourth + k];
    a += u * p;
    b += u * q;
    c += u * r;
    d += u * s;
    e += v * p;
    f += v * q;
    g += v * r;
    h += v * s;
  }
  write(y.data, at, places, a, b, c, d);
  write(y.data, at + y.step, places, e, f, g, h);
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
  write(y, at, places, a, b, c, d);
}

/**
 * @param {Float64Array} y
 * @param {number} at
 * @param {number[]} places
 * @param {number} a
 * @param {number} b
 * @param {number} c
 * @param {number} d
 */
function write(y, at, places, a, b, c, d) {
  y[at + places[0]] = a;
  y[at + places[1]] = b;
  y[at + places[2]] = c;
  y[at + places[3]] = d;
}
