// What a cache of first and latest keys would lose, against the definition.

import assert from "node:assert/strict";
import { test } from "node:test";
import { evictionOf } from "../../src/regard/show/web/source/arithmetic/eviction.js";
import { Head } from "../../src/regard/show/web/source/arithmetic/weights.js";
import { headArrays, near, weightsOf } from "./helpers.js";

const OPTIONS = { queries: 256, sinks: [0, 1, 2, 4, 8, 16] };

/** The mean loss over the queries that would lose a key they may look at. */
function lossOf(arrays, window, sinks) {
  const { T, S } = arrays;
  const losses = [];
  weightsOf(arrays).forEach((row, i) => {
    const place = i + S - T;
    const gone = row.filter((w, j) => w > 0 && j >= sinks && j <= place - window);
    if (gone.length) losses.push(gone.reduce((a, b) => a + b, 0));
  });
  return losses.length ? losses.reduce((a, b) => a + b, 0) / losses.length : null;
}

test("a head that looks at all keys alike, worked out by hand", async () => {
  // Query i gives each of its i + 1 keys 1 / (i + 1). With the 4 latest kept, query 4 loses 1/5, query 5 2/6.
  const zeros = new Float32Array(6 * 2);
  const head = new Head(headArrays({ T: 6, D: 2 }, { q: zeros, k: zeros }));
  const { windows, sinks, lost, queries, ahead } = await evictionOf([head], OPTIONS);
  assert.deepEqual(windows, [4]);
  assert.deepEqual(sinks, [0, 1, 2, 4, 8, 16]);
  assert.equal(queries, 6);
  assert.equal(ahead, false);
  near(lost[0][0][0], (1 / 5 + 2 / 6) / 2, 1e-6);
  near(lost[0][0][1], 1 / 6, 1e-6); // one first key kept: only query 5 loses, key 1
  assert.equal(lost[0][0][2], null); // two first keys and four latest are all six
});

test("sizes of a window are those below the number of keys", async () => {
  const head = new Head(headArrays({ T: 2, S: 20 }));
  assert.deepEqual((await evictionOf([head], OPTIONS)).windows, [4, 6, 8, 12, 16]);
  const few = new Head(headArrays({ T: 3 }));
  assert.deepEqual((await evictionOf([few], OPTIONS)).windows, []);
});

test("every policy of several heads is the definition's", async () => {
  const several = [
    headArrays({ T: 40, seed: 2 }),
    headArrays({ T: 40, seed: 3, visible: (i) => [[Math.max(0, i - 9), i + 1]] }),
  ];
  const { windows, sinks, lost } = await evictionOf(
    several.map((arrays) => new Head(arrays)),
    OPTIONS,
  );
  several.forEach((arrays, h) =>
    windows.forEach((window, w) =>
      sinks.forEach((first, s) => {
        const wanted = lossOf(arrays, window, first);
        if (wanted === null) assert.equal(lost[h][w][s], null);
        else near(lost[h][w][s], wanted, 1e-5);
      }),
    ),
  );
});

test("keeping more never loses more, where every query sees all before it", async () => {
  const { lost } = await evictionOf([new Head(headArrays({ T: 64, seed: 4 }))], OPTIONS);
  const total = (w, s) => lost[0][w][s] ?? 0;
  for (let s = 1; s < 6; s++) assert.ok(total(0, s) <= total(0, s - 1) + 1e-9);
});

test("queries that look ahead are said to", async () => {
  const all = headArrays({ T: 8, visible: () => [[0, 8]] });
  assert.equal((await evictionOf([new Head(all)], OPTIONS)).ahead, true);
});

test("of a long text some queries, evenly chosen, stand for all", async () => {
  const { queries } = await evictionOf([new Head(headArrays({ T: 700, D: 1 }))], OPTIONS);
  assert.equal(queries, 256);
});
