// @ts-check
// Matrix products in WebAssembly, four numbers at a time: a few hundred bytes, which are put together here.
// Where the browser or a policy does not allow it there is none, and `products.js` multiplies by itself.

/** Opcodes, as the WebAssembly specification numbers them. */
const LOOP = [0x03, 0x40];
const BRANCH_IF = [0x0d, 0];
const END = [0x0b];
const ADD = [0x6a];
const SUBTRACT = [0x6b];
const LESS = [0x49];
const STORE = [0x38, 2, 0];
const ADD_FLOAT = [0x92];
const LOAD_4 = [0xfd, 0x00, 2, 0];
const ADD_4 = [0xfd, 0xe4, 0x01];
const MULTIPLY_4 = [0xfd, 0xe6, 0x01];
const ZERO_4 = [0xfd, 0x0c, ...Array(16).fill(0)];
const lane = (/** @type {number} */ n) => [0xfd, 0x1f, n];
const get = (/** @type {number} */ local) => [0x20, local];
const set = (/** @type {number} */ local) => [0x21, local];
const constant = (/** @type {number} */ n) => [0x41, n]; // below 64

/** The function's parameters, in bytes but for the first, and its own variables. */
const [ROWS, X, W, Y, W_END, X_ROW, Y_ROW] = [0, 1, 2, 3, 4, 5, 6];
const [AT_X, AT_W, AT_Y, X_END, FROM] = [7, 8, 9, 10, 11];
const W_FIRST = 12; // two of four numbers of a row of w
const SUMS = 14; // four rows by two
const TILE = { rows: 4, columns: 2 };

/**
 * Adds what a variable holds to another.
 * @param {number} local
 * @param {number[]} more
 */
const increase = (local, more) => [...get(local), ...more, ...ADD, ...set(local)];

/** Every row of x times every row of w: four of x and two of w at a time. */
function body() {
  const tile = Array.from({ length: TILE.rows }, (_, i) => i);
  const columns = [0, 1];
  const sum = (/** @type {number} */ i, /** @type {number} */ j) => SUMS + TILE.columns * i + j;
  const products = tile.flatMap((i) => [
    ...(i ? increase(FROM, get(X_ROW)) : [...get(AT_X), ...set(FROM)]),
    ...columns.flatMap((j) => [
      ...[...get(sum(i, j)), ...get(FROM), ...LOAD_4, ...get(W_FIRST + j)],
      ...[...MULTIPLY_4, ...ADD_4, ...set(sum(i, j))],
    ]),
  ]);
  const total = (/** @type {number} */ local) => [
    ...[...get(local), ...lane(0), ...get(local), ...lane(1), ...ADD_FLOAT],
    ...[...get(local), ...lane(2), ...get(local), ...lane(3), ...ADD_FLOAT, ...ADD_FLOAT],
  ];
  const stores = tile.flatMap((i) => [
    ...(i ? increase(FROM, get(Y_ROW)) : [...get(AT_Y), ...set(FROM)]),
    ...columns.flatMap((j) => [...get(FROM), ...constant(4 * j), ...ADD, ...total(sum(i, j)), ...STORE]),
  ]);
  const depths = [
    ...LOOP,
    ...[...get(AT_W), ...LOAD_4, ...set(W_FIRST)],
    ...[...get(AT_W), ...get(X_ROW), ...ADD, ...LOAD_4, ...set(W_FIRST + 1)],
    ...products,
    ...increase(AT_W, constant(16)),
    ...increase(AT_X, constant(16)),
    ...[...get(AT_X), ...get(X_END), ...LESS, ...BRANCH_IF],
    ...END,
  ];
  const acrossW = [
    ...LOOP,
    ...tile.flatMap((i) => columns.flatMap((j) => [...ZERO_4, ...set(sum(i, j))])),
    ...[...get(X), ...set(AT_X)],
    ...depths,
    ...stores,
    ...increase(AT_W, get(X_ROW)), // it has gone over the first of the two rows
    ...increase(AT_Y, constant(4 * TILE.columns)),
    ...[...get(AT_W), ...get(W_END), ...LESS, ...BRANCH_IF],
    ...END,
  ];
  const acrossX = [
    ...LOOP,
    ...[...get(W), ...set(AT_W), ...get(Y), ...set(AT_Y)],
    ...[...get(X), ...get(X_ROW), ...ADD, ...set(X_END)],
    ...acrossW,
    ...tile.flatMap(() => [...increase(X, get(X_ROW)), ...increase(Y, get(Y_ROW))]),
    ...[...get(ROWS), ...constant(TILE.rows), ...SUBTRACT, ...[0x22, ROWS], ...BRANCH_IF],
    ...END,
  ];
  return [...acrossX, ...END];
}

/**
 * A number of any size, seven bits a byte.
 * @param {number} n
 * @returns {number[]}
 */
const leb = (n) => (n < 128 ? [n] : [(n & 127) | 128, ...leb(n >> 7)]);
const sized = (/** @type {number[]} */ bytes) => [...leb(bytes.length), ...bytes];

function moduleBytes() {
  const [INT, VECTOR] = [0x7f, 0x7b];
  const name = (/** @type {string} */ text) => sized([...new TextEncoder().encode(text)]);
  const locals = [2, 5, INT, 10, VECTOR];
  return new Uint8Array([
    ...[0, 0x61, 0x73, 0x6d, 1, 0, 0, 0],
    ...[1, ...sized([1, 0x60, ...sized(Array(7).fill(INT)), 0])], // the type of the function
    ...[2, ...sized([1, ...name("a"), ...name("memory"), 2, 0, 1])],
    ...[3, ...sized([1, 0])],
    ...[7, ...sized([1, ...name("multiply"), 0, 0])],
    ...[10, ...sized([1, ...sized([...locals, ...body()])])],
  ]);
}

const PAGE = 1 << 16; // bytes
const above = (/** @type {number} */ n, /** @type {number} */ of) => Math.ceil(n / of) * of;

/**
 * The product of `products.js` in WebAssembly, in single precision; null where there is none.
 * @returns {((x: WideMatrix, w: NarrowMatrix, y: WideMatrix, rows: number, columns: number, depth: number) => void) | null}
 */
export function makeSimdProduct() {
  const memory = new WebAssembly.Memory({ initial: 1 });
  /** @type {any} */
  let made;
  try {
    made = new WebAssembly.Instance(new WebAssembly.Module(moduleBytes()), { a: { memory } });
  } catch {
    return null; // a browser without SIMD, or a policy without 'wasm-unsafe-eval'
  }
  return (x, w, y, rows, columns, depth) => {
    const step = above(depth, 4);
    const [high, wide] = [above(rows, TILE.rows), above(columns, TILE.columns)];
    const [atW, atY] = [high * step, (high + wide) * step];
    const missing = 4 * (atY + high * wide) - memory.buffer.byteLength;
    if (missing > 0) memory.grow(Math.ceil(missing / PAGE));
    const numbers = new Float32Array(memory.buffer);
    copyRows(x, rows, depth, numbers, 0, step);
    copyRows(w, columns, depth, numbers, atW, step);
    made.exports.multiply(high, 0, 4 * atW, 4 * atY, 4 * atY, 4 * step, 4 * wide);
    for (let row = 0; row < rows; row++) {
      const from = atY + row * wide;
      y.data.set(numbers.subarray(from, from + columns), y.at + row * y.step);
    }
  };
}

/**
 * Copies rows of a matrix one after another, each filled up with zeros.
 * @param {WideMatrix | NarrowMatrix} matrix
 * @param {number} rows
 * @param {number} depth
 * @param {Float32Array} out
 * @param {number} at
 * @param {number} step
 */
function copyRows({ data, at: from, step: own }, rows, depth, out, at, step) {
  if (own === depth && step === depth) return out.set(data.subarray(from, from + rows * depth), at);
  for (let row = 0; row < rows; row++) {
    out.set(data.subarray(from + row * own, from + row * own + depth), at + row * step);
    out.fill(0, at + row * step + depth, at + (row + 1) * step);
  }
}
