// Weights of linear layers, against the state of their recurrence: what a value of 1 at one key adds to each output.

import assert from "node:assert/strict";
import { test } from "node:test";
import { LinearHead } from "../../src/regard/show/web/source/arithmetic/linear_weights.js";
import { near, numbers } from "./helpers.js";

const random = numbers(5);
const noise = (size, low, high) => Float32Array.from({ length: size }, () => low + (high - low) * random());

/** The arrays of a causal head, with T queries at the end of S keys. */
function linearArrays({ T, S = T, D = 4, byChannel = false, deltaRule = true, skip = 0 }) {
  return {
    T,
    S,
    D,
    q: noise(S * D, -1, 1),
    k: noise(S * D, -0.5, 0.5),
    decay: noise(byChannel ? S * D : S, -0.3, 0),
    beta: noise(S, 0, 1),
    skip,
    deltaRule,
    offsets: Uint32Array.from({ length: T + 1 }, (_, i) => i),
    ranges: Uint32Array.from({ length: 2 * T }, (_, n) => (n % 2 ? (n - 1) / 2 + S - T + 1 : 0)),
  };
}

/** The matrix by the recurrence S_t = (I − β k kᵀ) e^g S_{t−1} + β k vᵀ, whose values are the unit vectors. */
function matrix({ T, S, D, q, k, decay, beta, skip, deltaRule }) {
  let state = Array.from({ length: D }, () => new Float64Array(S));
  const rows = [];
  for (let t = 0; t < S; t++) {
    const key = k.subarray(t * D, (t + 1) * D);
    state = state.map((line, d) => line.map((x) => x * Math.exp(decay[decay.length > S ? t * D + d : t])));
    for (let s = 0; s < S; s++) {
      const read = state.reduce((sum, line, d) => sum + key[d] * line[s], 0);
      const written = beta[t] * ((s === t ? 1 : 0) - (deltaRule ? read : 0));
      state.forEach((line, d) => (line[s] += key[d] * written));
    }
    const row = Float64Array.from({ length: S }, (_, s) =>
      state.reduce((sum, line, d) => sum + q[t * D + d] * line[s], s === t ? skip : 0),
    );
    if (t >= S - T) rows.push(row);
  }
  return rows;
}

const HEADS = {
  "a gated delta rule": linearArrays({ T: 12 }),
  "channels that decay apart": linearArrays({ T: 9, D: 5, byChannel: true }),
  "a decay and a skip": linearArrays({ T: 10, deltaRule: false, skip: 0.7 }),
  "fewer queries than keys": linearArrays({ T: 3, S: 11 }),
};

for (const [name, arrays] of Object.entries(HEADS)) {
  const [head, wanted] = [new LinearHead(arrays), matrix(arrays)];
  const { T, S } = arrays;

  test(`${name}: rows, parts of rows and columns are the recurrence's`, () => {
    for (let i = 0; i < T; i++) {
      head.row(i).forEach((w, j) => near(w, wanted[i][j], 1e-6));
      const part = new Float32Array(S);
      head.weigh(i, 1, 3, part);
      for (let j = 1; j < 3; j++) near(part[j], wanted[i][j], 1e-6);
    }
    for (let j = 0; j < S; j++) head.column(j).forEach((w, i) => near(w, wanted[i][j], 1e-6));
  });

  test(`${name}: cells of several weights are sums over keys and means over queries`, async () => {
    const { mass, max, rows, cols } = await head.tile(1, 0, 0);
    assert.equal(rows * cols, mass.length);
    for (let y = 0; y < rows; y++)
      for (let x = 0; x < cols; x++) {
        const queries = wanted.slice(2 * y, 2 * y + 2);
        const sum = queries.reduce((a, row) => a + row.slice(2 * x, 2 * x + 2).reduce((b, w) => b + w, 0), 0);
        near(mass[y * cols + x], sum / queries.length, 1e-6);
        const visible = 2 * x <= 2 * y + queries.length - 1 + S - T;
        assert.equal(max[y * cols + x], visible ? 0 : -1);
      }
  });
}

test("what a head has forgotten has no weight", () => {
  const arrays = linearArrays({ T: 40 });
  arrays.decay.fill(-800);
  const row = new LinearHead(arrays).row(39);
  assert.ok(row[39] !== 0 && row.subarray(0, 39).every((w) => w === 0));
});
