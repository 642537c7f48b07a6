// Where the colours of a map end: one scale for a head, on its large map and on its thumbnail.

import assert from "node:assert/strict";
import { test } from "node:test";
import {
  countedScaleEnd,
  mapScale,
  scaleEnd,
  thumbScale,
} from "../../src/regard/show/web/parts/map_scale.js";
import { PLAIN } from "../../src/regard/show/web/data/quantity.js";
import { applySettings, overviewLevel, settings } from "../../src/regard/show/web/data/settings.js";
import { fitTop } from "../../src/regard/show/web/map/tile_image.js";
import { TilePyramid } from "../../src/regard/show/web/map/tiles.js";
import { TILE, near } from "./helpers.js";

const SIDE = 64; // cells of a thumbnail
const byteOf = (mass) => Math.round(1 + 254 * Math.sqrt(mass));

test("uniform attention takes a quarter of the ramp, however many keys there are", () => {
  for (const keys of [8, 64, 500]) {
    const end = scaleEnd(new Float32Array(keys * keys).fill(1 / keys), { most: 1 });
    near(mapScale("linear", end, keys).at(1 / keys), 0.25, 0.02);
  }
  assert.equal(scaleEnd(Float32Array.of(1, 0.5, 0.5), { most: 1 }), 1); // no weight is above 1
});

test("the strongest cells lie beyond the end, whatever their signs", () => {
  const values = Float32Array.from({ length: 2000 }, (_, n) => (n < 8 ? 0.9 : n < 300 ? -0.4 : 0.001));
  assert.equal(scaleEnd(values), 0.4);
});

test("a map of zeros has a scale from 0 to 1", () => {
  assert.equal(scaleEnd(new Float32Array(100)), 0);
  assert.equal(scaleEnd(new Float32Array(0)), 0);
  for (const kind of ["linear", "log"]) {
    const scale = mapScale(kind, 0, 100);
    assert.deepEqual([scale.top, scale.at(0), scale.at(1)], [1, 0, 1]);
  }
  const contributions = mapScale("linear", 0, 100, { ...PLAIN, shade: "logit" });
  assert.deepEqual([contributions.top, contributions.at(0)], [1, 0.5]);
});

test("a thumbnail has the colours of its large map", () => {
  const keys = 448; // seven tokens a cell of the thumbnail
  const size = keys / SIDE;
  const uniform = new Uint8Array(SIDE ** 2).fill(byteOf(size / keys));
  near(thumbScale(uniform, { rows: keys, cols: keys }).at(size / keys), 0.25, 0.02);
  // A line of strong cells lies beyond the end of both, and what is beside it decides.
  const large = Float32Array.from({ length: keys ** 2 }, (_, n) => (n % keys === 0 ? 0.9 : 0.1 / (keys - 1)));
  const small = Uint8Array.from({ length: SIDE ** 2 }, (_, n) =>
    byteOf(n % SIDE === 0 ? 0.9 : (size * 0.1) / (keys - 1)),
  );
  const onMap = mapScale("linear", scaleEnd(large, { most: 1 }), keys).at(0.1 / (keys - 1));
  const onThumb = thumbScale(small, { rows: keys, cols: keys }).at((size * 0.1) / (keys - 1));
  near(onThumb, onMap, 0.02);
});

test("the colours of a thumbnail may end at 1", () => {
  const faint = new Uint8Array(SIDE ** 2).fill(byteOf(0.01));
  assert.equal(thumbScale(faint, { rows: SIDE, cols: SIDE }, { whole: true }).top, 1);
});

test("the colours are fitted to the whole map, at the same level whatever part is seen", async () => {
  assert.deepEqual(
    [1, 256, 512, 513, 4096].map((T) => overviewLevel(T, T)),
    [0, 0, 0, 1, 3],
  );
  const asked = [];
  const source = {
    atOnce: 100,
    async tile({ z, i, j }) {
      asked.push([z, i, j].join(" "));
      return { rows: TILE, cols: TILE, mass: new Float32Array(TILE ** 2), max: new Float32Array(TILE ** 2) };
    },
  };
  const pyramid = new TilePyramid(source, () => {}, assert.fail);
  pyramid.look({ text: 0, layer: "0", head: 0, T: 2000, S: 2000, quantity: PLAIN });
  const part = { left: 300, top: 900, right: 340, bottom: 940 };
  pyramid.cover(part, 0);
  assert.equal(asked[0], "0 3 1"); // what is seen comes first
  assert.deepEqual(asked.slice(1).sort(), ["2 0 0", "2 0 1", "2 1 0", "2 1 1"]);
  assert.equal(pyramid.overview().complete, false);
  await new Promise((done) => setTimeout(done, 0));
  const { drawn, complete } = pyramid.overview();
  assert.deepEqual([drawn.length, complete], [4, true]);
  assert.ok(drawn.every(({ z, tile }) => z === 2 && tile));
  pyramid.cover({ left: 0, top: 0, right: 2000, bottom: 2000 }, 2);
  assert.equal(asked.length, 5); // what is there is not asked for again
});

test("numbers that occur several times have the end that they have one by one", () => {
  const kinds = Float32Array.of(0.5, -0.25, 0, 0.125, 0.75);
  for (const counts of [
    [1, 300, 20, 7, 2],
    [0, 0, 9, 0, 0],
    [0, 0, 0, 0, 0],
    [40, 1, 1, 1, 1],
  ]) {
    const all = Float32Array.from(counts.flatMap((n, kind) => new Array(n).fill(kinds[kind])));
    for (const beyond of [0.005, 0.1])
      assert.equal(countedScaleEnd(kinds, Uint32Array.from(counts), { beyond }), scaleEnd(all, { beyond }));
  }
});

test("every cell of a map counts alike, in large tiles and in the small ones at its end", () => {
  applySettings({ ...settings, tile: 256 });
  const tile = (rows, cols, value) => {
    const values = new Float32Array(rows * cols).fill(value);
    return { rows, cols, mass: values, max: values };
  };
  const whole = { left: 0, top: 0, right: 300, bottom: 300 };
  const drawn = [
    { z: 0, i: 0, j: 0, tile: tile(256, 256, 0.01) },
    { z: 0, i: 1, j: 0, tile: tile(1, 256, 0.9) }, // 256 of 65,792 cells: fewer than lie beyond the end
  ];
  assert.equal(fitTop(drawn, whole, "mass", -1), 0.054);
});
