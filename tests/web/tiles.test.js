// The pyramid of tiles: levels, what a frame needs, what stands in for it, and which questions are asked.

import assert from "node:assert/strict";
import { test } from "node:test";
import { PLAIN } from "../../src/regard/show/web/data/quantity.js";
import { cellsAlong, topLevel } from "../../src/regard/show/web/data/settings.js";
import { TilePyramid, levelFor } from "../../src/regard/show/web/map/tiles.js";
import { TILE, numbers } from "./helpers.js";

/** A source whose tiles come when they are told to. */
function source(atOnce = 4) {
  const asked = [];
  return {
    atOnce,
    asked,
    tile({ text, layer, head, z, i, j }, signal) {
      return new Promise((done, failed) => {
        const question = { text, layer, head, z, i, j, done, failed };
        asked.push(question);
        signal.addEventListener("abort", () => {
          question.left = true;
          failed(signal.reason);
        });
      });
    },
  };
}

const tileOf = (rows, cols, value) => ({
  rows,
  cols,
  mass: new Float32Array(rows * cols).fill(value),
  max: new Float32Array(rows * cols).fill(value),
});

const settle = () => new Promise((done) => setTimeout(done, 0));

function pyramid(T, S, from = source()) {
  const errors = [];
  let changes = 0;
  const made = new TilePyramid(
    from,
    () => changes++,
    (error) => errors.push(error),
  );
  made.look({ text: 0, layer: "3", head: 5, T, S, quantity: PLAIN });
  return { made, from, errors, changes: () => changes };
}

const all = (T, S) => ({ left: 0, top: 0, right: S, bottom: T });

test("the coarsest level is one tile", () => {
  assert.equal(topLevel(1, 1), 0);
  assert.equal(topLevel(256, 256), 0);
  assert.equal(topLevel(257, 1), 1);
  assert.equal(topLevel(10, 4096), 4);
  assert.equal(topLevel(100_000, 3), 9); // 256 · 2^8 = 65,536 are not enough
});

test("cells along an axis add up to the axis, and no tile has more than TILE", () => {
  assert.equal(cellsAlong(300, 0, 0), 256);
  assert.equal(cellsAlong(300, 0, 1), 44);
  assert.equal(cellsAlong(300, 1, 0), 150);
  const random = numbers(3);
  for (let n = 0; n < 200; n++) {
    const size = 1 + Math.floor(random() * 20_000);
    for (let z = 0; z <= topLevel(size, size); z++) {
      const tiles = Math.ceil(size / (TILE * 2 ** z));
      let sum = 0;
      for (let i = 0; i < tiles; i++) {
        const cells = cellsAlong(size, z, i);
        assert.ok(cells > 0 && cells <= TILE);
        sum += cells;
      }
      assert.equal(sum, Math.ceil(size / 2 ** z));
    }
  }
});

test("a cell is about one pixel of the screen", () => {
  const [T, S] = [100_000, 100_000];
  assert.equal(levelFor(40, T, S), 0);
  assert.equal(levelFor(1, T, S), 0);
  assert.equal(levelFor(0.25, T, S), 2);
  assert.equal(levelFor(1e-9, T, S), topLevel(T, S));
  for (let pixels = 0.002; pixels < 1; pixels *= 1.1) {
    const z = levelFor(pixels, T, S);
    const side = pixels * 2 ** z;
    assert.ok(side > 0.7 && side < 1.42, `${side} pixels at ${pixels}`);
  }
});

test("a frame asks for its tiles, nearest to the middle first, a few at a time", () => {
  const { made, from } = pyramid(1024, 1024); // 4 × 4 tiles
  const { drawn, complete } = made.cover({ left: 0, top: 0, right: 700, bottom: 700 }, 0);
  assert.equal(complete, false);
  assert.equal(drawn.length, 9);
  assert.ok(drawn.every(({ tile }) => tile === null));
  assert.equal(from.asked.length, 4);
  assert.deepEqual([from.asked[0].i, from.asked[0].j], [1, 1]); // holds place 350, 350
  assert.deepEqual([from.asked[0].layer, from.asked[0].head], ["3", 5]);
  made.cover({ left: 0, top: 0, right: 700, bottom: 700 }, 0);
  assert.equal(from.asked.length, 4); // they are on their way
});

test("the parts that are drawn cover the map without a gap, also at its edges", () => {
  const random = numbers(4);
  for (let n = 0; n < 100; n++) {
    const [T, S] = [1 + Math.floor(random() * 3000), 1 + Math.floor(random() * 3000)];
    const z = Math.floor(random() * (topLevel(T, S) + 1));
    const { made } = pyramid(T, S);
    const { drawn } = made.cover(all(T, S), z);
    const area = drawn.reduce((sum, { part: p }) => sum + (p.right - p.left) * (p.bottom - p.top), 0);
    assert.equal(area, T * S);
  }
});

test("a coarser tile stands in for one that is missing, and is drawn first", async () => {
  const { made, from, changes } = pyramid(512, 512);
  made.cover(all(512, 512), 1);
  from.asked[0].done(tileOf(256, 256, 0.5));
  await settle();
  assert.equal(changes(), 1);
  made.cover(all(512, 512), 0);
  const fine = from.asked.find(({ z, i, j }) => z === 0 && i === 0 && j === 0);
  fine.done(tileOf(256, 256, 0.25));
  await settle();
  const { drawn, complete } = made.cover(all(512, 512), 0);
  assert.equal(complete, false);
  assert.deepEqual(
    drawn.map(({ z }) => z),
    [1, 1, 1, 0],
  );
  assert.deepEqual(made.cell(100, 100), { mass: 0.25, max: 0.25, z: 0 });
  assert.deepEqual(made.cell(400, 100), { mass: 0.5, max: 0.5, z: 1 });
  assert.deepEqual(made.cell(100, 100, 1), { mass: 0.5, max: 0.5, z: 1 });
});

test("a cell is looked up in its own tile, at its own place", async () => {
  const { made, from } = pyramid(300, 300);
  made.cover(all(300, 300), 0);
  const corner = from.asked.find(({ i, j }) => i === 1 && j === 1);
  const tile = tileOf(44, 44, 0);
  tile.mass[3 * 44 + 7] = 0.75;
  corner.done(tile);
  await settle();
  assert.equal(made.cell(256 + 3, 256 + 7).mass, 0.75);
  assert.equal(made.cell(256 + 7, 256 + 3).mass, 0);
  assert.equal(made.cell(0, 0), null);
});

test("questions that nobody waits for are let go, and no error is said of them", async () => {
  const { made, from, errors } = pyramid(4096, 4096);
  made.cover({ left: 0, top: 0, right: 200, bottom: 200 }, 0);
  made.cover({ left: 3000, top: 3000, right: 3200, bottom: 3200 }, 0);
  await settle();
  assert.equal(from.asked[0].left, true);
  assert.deepEqual(errors, []);
  made.look({ text: 0, layer: "3", head: 6, T: 4096, S: 4096, quantity: PLAIN });
  await settle();
  assert.ok(from.asked.every(({ left }) => left));
});

test("a tile that comes for a head which is not looked at any more is not shown", async () => {
  const { made, from, changes } = pyramid(100, 100);
  made.cover(all(100, 100), 0);
  made.look({ text: 0, layer: "3", head: 6, T: 100, S: 100, quantity: PLAIN });
  from.asked[0].done(tileOf(100, 100, 1));
  await settle();
  assert.equal(made.cell(0, 0), null);
  assert.equal(changes(), 0);
});

test("an error is handed on, and the tile is asked for again", async () => {
  const { made, from, errors } = pyramid(100, 100);
  made.cover(all(100, 100), 0);
  from.asked[0].failed(new Error("no"));
  await settle();
  assert.deepEqual(
    errors.map(({ message }) => message),
    ["no"],
  );
  made.cover(all(100, 100), 0);
  assert.equal(from.asked.length, 2);
});

test("a stopped pyramid leaves its questions and asks nothing until it goes on or turns to another head", async () => {
  const { made, from } = pyramid(100, 100);
  assert.deepEqual(made.cover(all(100, 100), 0), {
    drawn: made.cover(all(100, 100), 0).drawn,
    complete: false,
    missing: 1,
    needed: 1,
  });
  made.stopped = true;
  made.cover(all(100, 100), 0);
  await settle();
  assert.ok(from.asked.every(({ left }) => left));
  const before = from.asked.length;
  made.cover(all(100, 100), 0);
  assert.equal(from.asked.length, before);
  made.look({ text: 0, layer: "3", head: 6, T: 100, S: 100, quantity: PLAIN });
  made.cover(all(100, 100), 0);
  assert.equal(from.asked.length, before + 1);
});
