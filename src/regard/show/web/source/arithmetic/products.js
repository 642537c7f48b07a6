// @ts-check
// Dot products of one vector with many, where nearly all the time of the page goes by.

/**
 * out[to + c] = Σ_d x[at + d] · w[first + c · step + d] for every c below `count`; four at once keep the processor busy.
 * @param {Float64Array} x
 * @param {number} at
 * @param {Float32Array} w
 * @param {number} first
 * @param {number} step
 * @param {number} depth
 * @param {Float64Array} out
 * @param {number} to
 * @param {number} count
 */
export function dotProducts(x, at, w, first, step, depth, out, to, count) {
  let column = 0;
  for (; column + 3 < count; column += 4) {
    const one = first + column * step;
    const two = one + step;
    const three = two + step;
    const four = three + step;
    let a = 0;
    let b = 0;
    let c = 0;
    let d = 0;
    for (let n = 0; n < depth; n++) {
      const u = x[at + n];
      a += u * w[one + n];
      b += u * w[two + n];
      c += u * w[three + n];
      d += u * w[four + n];
    }
    out[to + column] = a;
    out[to + column + 1] = b;
    out[to + column + 2] = c;
    out[to + column + 3] = d;
  }
  for (; column < count; column++) {
    let sum = 0;
    for (let n = 0; n < depth; n++) sum += x[at + n] * w[first + column * step + n];
    out[to + column] = sum;
  }
}
