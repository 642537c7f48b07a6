// Parts of the page's model that need no weights: sampling, visible keys, merges, words and what the page is told.
// Whole runs are compared with the library's in tests/show/saved/test_model_block.py.

import assert from "node:assert/strict";
import { test } from "node:test";
import { writePieces } from "../../src/regard/show/web/model/tokens/character_pieces.js";
import { Merges } from "../../src/regard/show/web/model/tokens/merges.js";
import { changes, largest, sampleToken } from "../../src/regard/show/web/model/predictions.js";
import { multiply } from "../../src/regard/show/web/model/products.js";
import { maskArrays, visibleKeys } from "../../src/regard/show/web/model/attention.js";
import { withModel } from "../../src/regard/show/web/source/live.js";
import { near, numbers } from "./helpers.js";

test("products of any shape are those of their definition", () => {
  const random = numbers(3);
  for (const [rows, columns, depth] of [
    [1, 1, 1],
    [1, 5, 3],
    [2, 4, 6],
    [3, 7, 2],
    [5, 2, 9],
  ]) {
    const x = { data: Float64Array.from({ length: 1 + rows * depth }, random), at: 1, step: depth };
    const w = { data: Float32Array.from({ length: 2 + columns * depth }, random), at: 2, step: depth };
    const y = { data: new Float64Array(rows * (columns + 1)).fill(-1), at: 0, step: columns + 1 };
    multiply(x, w, y, rows, columns, depth);
    for (let r = 0; r < rows; r++) {
      for (let c = 0; c < columns; c++) {
        let sum = 0;
        for (let k = 0; k < depth; k++) sum += x.data[1 + r * depth + k] * w.data[2 + c * depth + k];
        near(y.data[r * (columns + 1) + c], sum, 1e-12);
      }
      assert.equal(y.data[r * (columns + 1) + columns], -1); // nothing beside it is touched
    }
  }
});

test("at temperature 0 the likeliest token is taken, above it they are drawn by their probabilities", () => {
  const logits = Float64Array.of(0, Math.log(3), -Infinity);
  assert.equal(sampleToken(logits, 0), 1);
  assert.equal(
    sampleToken(logits, 1, () => 0.2),
    0,
  ); // a quarter of the mass
  assert.equal(
    sampleToken(logits, 1, () => 0.3),
    1,
  );
  assert.equal(
    sampleToken(logits, 1, () => 0.9999999999),
    1,
  ); // never what has no probability
  assert.deepEqual(largest(Float64Array.of(2, 5, 5, 1), 3), [1, 2, 0]);
});

test("a query sees the keys up to its own, in its window, less what is cut", () => {
  const cut = { kind: "edges", layer: "0", head: 1, queries: [4, 6], keys: [2, 4] };
  assert.deepEqual(visibleKeys(null, [], 0, 5), [0, 6]);
  assert.deepEqual(visibleKeys(3, [], 0, 5), [3, 6]);
  assert.deepEqual(visibleKeys(null, [cut], 1, 5), [0, 2, 4, 6]);
  assert.deepEqual(visibleKeys(null, [cut], 0, 5), [0, 6]); // another head
  assert.deepEqual(visibleKeys(null, [cut], 1, 6), [0, 7]); // another query
  assert.deepEqual(visibleKeys(null, [{ ...cut, keys: [0, 9] }], 1, 5), []);
  assert.equal(maskArrays(null, [], 2, 4).offsets.length, 5); // all heads see alike
  assert.equal(maskArrays(null, [cut], 2, 4).offsets.length, 9);
});

test("pairs are merged in the order in which they were learned, and then from left to right", () => {
  const [a, b, ab, aba] = [0, 1, 2, 3];
  const merges = new Merges([a, b, ab, ab, a, aba], 4);
  assert.deepEqual(merges.merge([a, b, a, b, a]), [ab, aba]);
  assert.deepEqual(merges.merge([b, a]), [b, a]);
  assert.deepEqual(merges.merge([]), []);
});

test("pieces of a character have marks, and bytes that are no character their number", () => {
  const [first, second] = [Uint8Array.of(0xe4), Uint8Array.of(0xb8, 0x96, 0x21)];
  assert.deepEqual(writePieces(["the ", first, second, Uint8Array.of(0xff)]), [
    "the ",
    "世¹⁄₂",
    "世²⁄₂!",
    "<0xFF>",
  ]);
});

test("what a cut changed is listed by how much", () => {
  const { before, after, most } = changes([1, 2, 3], [1, 4, 3.5], 5);
  near(before, 2, 1e-12);
  near(after, 8.5 / 3, 1e-12);
  assert.deepEqual(
    most.map(({ position }) => position),
    [2, 3],
  );
});

test("a text that was lost between page and worker leaves no hole", async () => {
  globalThis.document = { readyState: "complete" };
  const asked = [];
  const text = { title: "a", layers: [{ key: "0" }], edited: null, removed: false };
  const source = { meta: { texts: [text], can: {} } };
  const live = withModel(source, async (name, question) => {
    asked.push([name, question.text]);
    return name === "read" ? { number: 2, meta: { ...text, title: "b" } } : { ...text, removed: true };
  });
  assert.equal(await live.capture("b", () => {}, new AbortController().signal), 2);
  assert.deepEqual(
    live.meta.texts.map(({ removed }) => removed),
    [false, true, false],
  );
  assert.ok(asked.some(([name, number]) => name === "remove" && number === 1));
  assert.equal(await live.remove(2), 0);
  await assert.rejects(live.remove(0), /last text/);
});
