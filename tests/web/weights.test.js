// Weights, rows, columns and tiles of one head, against their definition; and one row step by step.

import assert from "node:assert/strict";
import { test } from "node:test";
import { cellsAlong, topLevel } from "../../src/regard/show/web/data/settings.js";
import { rowSteps } from "../../src/regard/show/web/source/arithmetic/row_steps.js";
import { Head } from "../../src/regard/show/web/source/arithmetic/weights.js";
import { TILE, headArrays, near, numbers, weightsOf } from "./helpers.js";

const random = numbers(8);
const noise = (size) => Float32Array.from({ length: size }, () => random() - 0.5);

/** Heads of every kind: shapes, masks, caps, biases. */
const HEADS = {
  causal: headArrays({ T: 11 }),
  "a window": headArrays({ T: 20, D: 7, visible: (i) => [[Math.max(0, i - 3), i + 1]] }),
  "two ranges and an empty row": headArrays({
    T: 9,
    S: 12,
    visible: (i) =>
      i === 4
        ? []
        : [
            [0, 2],
            [5, 6 + (i % 5)],
          ],
  }),
  "fewer queries than keys": headArrays({ T: 3, S: 10, D: 5 }),
  capped: headArrays({ T: 8 }, { softcap: 0.25 }),
  "biased by distance": headArrays({ T: 6, S: 7 }, { relative: noise(12) }),
  "any bias": headArrays({ T: 6, S: 7 }, { dense: noise(42) }),
  "more than one tile": headArrays({ T: TILE + 40, D: 3 }),
};

test("a row that can be worked out by hand", () => {
  // One query (1, 0) and keys (1, 0), (0, 1): scores 1 and 0, so weights e / (e + 1) and 1 / (e + 1).
  const head = new Head(
    headArrays(
      { T: 1, S: 2, D: 2, visible: () => [[0, 2]] },
      { q: Float32Array.of(1, 0), k: Float32Array.of(1, 0, 0, 1), scale: 1 },
    ),
  );
  near(head.row(0)[0], Math.E / (Math.E + 1), 1e-7);
  near(head.row(0)[1], 1 / (Math.E + 1), 1e-7);
});

for (const [name, arrays] of Object.entries(HEADS)) {
  const head = new Head(arrays);
  const wanted = weightsOf(arrays);
  const { T, S } = arrays;

  test(`${name}: rows and columns are the definition's`, () => {
    for (let i = 0; i < T; i++) {
      const row = head.row(i);
      wanted[i].forEach((w, j) => near(row[j], w, 1e-6));
      const sum = row.reduce((a, b) => a + b, 0);
      near(sum, wanted[i].some((w) => w > 0) ? 1 : 0, 1e-5);
    }
    for (let j = 0; j < S; j++) head.column(j).forEach((w, i) => near(w, wanted[i][j], 1e-6));
  });

  test(`${name}: tiles of every level are sums over keys and means over queries`, async () => {
    for (let z = 0; z <= topLevel(T, S) + 2; z++) {
      const size = 2 ** z;
      for (let i = 0; i * TILE * size < T; i++) {
        for (let j = 0; j * TILE * size < S; j++) {
          const tile = await head.tile(z, i, j);
          assert.deepEqual([tile.rows, tile.cols], [cellsAlong(T, z, i), cellsAlong(S, z, j)]);
          for (const [y, x] of [
            [0, 0],
            [tile.rows - 1, tile.cols - 1],
            [tile.rows >> 1, tile.cols >> 1],
          ]) {
            const rows = wanted.slice((i * TILE + y) * size, (i * TILE + y + 1) * size);
            const cells = rows.map((row) => row.slice((j * TILE + x) * size, (j * TILE + x + 1) * size));
            const mass = cells.flat().reduce((a, b) => a + b, 0) / rows.length;
            near(tile.mass[y * tile.cols + x], mass, 1e-5);
            const most = Math.max(...cells.flat());
            near(tile.max[y * tile.cols + x], most > 0 ? most : -1, 1e-5);
          }
        }
      }
    }
  });
}

test("a tile pauses after every query, and what a pause throws ends it", async () => {
  const head = new Head(headArrays({ T: 40 }));
  let pauses = 0;
  await head.tile(0, 0, 0, {}, async () => void pauses++);
  assert.equal(pauses, 40);
  const stop = async () => {
    if (++pauses === 45) throw new Error("enough");
  };
  await assert.rejects(head.tile(0, 0, 0, {}, stop), /enough/);
  assert.equal(pauses, 45);
});

test("a row step by step: each step follows from the one before", () => {
  const E = 3;
  for (const arrays of [HEADS.causal, HEADS.capped, HEADS["any bias"], HEADS["fewer queries than keys"]]) {
    const mean = noise(arrays.D);
    const v = noise(arrays.S * E);
    const about = { value_width: E, heads: [0, 1], kv_heads: 1 };
    const head = new Head({ ...arrays, mean });
    const row = arrays.T - 1;
    const work = rowSteps(head, v, about, row, 12);
    const weights = head.row(row);
    assert.equal(work.position, arrays.S - 1);
    assert.deepEqual(work.shapes, { T: arrays.T, S: arrays.S, D: arrays.D, E, H: 2, G: 1 });
    assert.deepEqual(
      work.keys,
      work.keys.toSorted((a, b) => a.key - b.key),
    );
    const shift = work.q.reduce((sum, x, d) => sum + x * mean[d], 0) * arrays.scale;
    for (const key of work.keys) {
      // Keys are kept less their mean, and shown with it.
      near(key.k[0], arrays.k[key.key * arrays.D] + mean[0], 1e-6);
      near(key.scaled, key.score * arrays.scale, 1e-12);
      if (arrays.softcap) near(key.capped, arrays.softcap * Math.tanh(key.scaled / arrays.softcap), 1e-12);
      else near(Math.exp(key.capped + key.added - work.lse), key.weight, 1e-5);
      assert.equal(key.weight, weights[key.key]);
    }
    near(work.lse, arrays.lse[row] + shift, 1e-9);
    for (let e = 0; e < E; e++) {
      near(
        work.output[e],
        [...weights].reduce((sum, w, j) => sum + w * v[j * E + e], 0),
        1e-6,
      );
    }
  }
});

test("without values a row stops at its weights", () => {
  const work = rowSteps(new Head(HEADS.causal), null, { value_width: null, heads: [0], kv_heads: 1 }, 2, 12);
  assert.equal(work.output, null);
  assert.equal(work.shapes.E, null);
  assert.ok(work.keys.every(({ v }) => v === null));
  assert.equal(work.visible, 3);
});
