// The Map view's arithmetic: colours that hold still, cells under points, thumbnails, and what is read.

import assert from "node:assert/strict";
import { test } from "node:test";
import { Camera, boundaryOf, cellAt, cellBeside, mapLayout } from "../../src/regard/show/web/map/camera.js";
import { mapScale } from "../../src/regard/show/web/parts/map_scale.js";
import { ColourFit } from "../../src/regard/show/web/map/tile_image.js";
import { cellFacts, layerFacts, strongestKeys } from "../../src/regard/show/web/map/readout.js";
import { precisionNote, roundingNote } from "../../src/regard/show/web/data/rounding.js";
import {
  captureSummary,
  columnNumbers,
  gridSizes,
} from "../../src/regard/show/web/map/thumbnails/thumbnail_grid.js";
import { headBeside } from "../../src/regard/show/web/data/layers.js";
import { near, numbers } from "./helpers.js";

const cover = (complete = true, tile = {}) => ({ drawn: [{ tile }], complete });

test("colours hold still while they about fit", () => {
  const fit = new ColourFit();
  fit.update("head 0", cover(), () => 0.5);
  assert.equal(fit.top, 0.5);
  fit.update("head 0", cover(), () => assert.fail("nothing changed"));
  fit.asked = true;
  fit.update("head 0", cover(), () => 0.6);
  assert.equal(fit.top, 0.5);
  fit.asked = true;
  fit.update("head 0", cover(), () => 0.7);
  assert.equal(fit.top, 0.7);
  fit.update("head 1", cover(), () => 0.75);
  assert.equal(fit.top, 0.75); // another head has its own
});

test("colours wait for tiles, and are fitted again once all are there", () => {
  const fit = new ColourFit();
  fit.update("head 0", cover(false, null), () => assert.fail("there is nothing to fit"));
  fit.update("head 0", cover(false), () => 0.5);
  fit.asked = true;
  fit.update("head 0", cover(false), () => assert.fail("not all is there"));
  fit.update("head 0", cover(true), () => 0.55); // near, but the first was a guess
  assert.equal(fit.top, 0.55);
});

test("a log scale begins below uniform attention, and spans a decade at least", () => {
  near(mapScale("log", 1, 600).bottom, 1e-4, 1e-12);
  near(mapScale("log", 1e-4, 600).bottom, 1e-5, 1e-12);
  assert.equal(mapScale("linear", 0.5, 600).at(0.25), 0.5);
});

test("a narrow room has narrow gutters", () => {
  const wide = mapLayout({ width: 900, height: 700 }, 2);
  assert.deepEqual(wide, { width: 900, height: 700, gutter: { left: 112, top: 96 }, pixel: 0.5 });
  assert.equal(mapLayout({ width: 390, height: 700 }, 1).gutter.left, 74);
});

test("the cell under the middle of a cell is that cell", () => {
  const random = numbers(9);
  const camera = new Camera();
  const layer = { rows: 700, cols: 500 };
  Object.assign(camera, { T: 700, S: 500, width: 800, height: 600 });
  camera.fit();
  for (let n = 0; n < 200; n++) {
    camera.zoomAt(0.5 + random(), [800 * random(), 600 * random()]);
    const z = Math.floor(4 * random());
    const size = 2 ** z;
    const [row, col] = [700, 500].map((all) => Math.floor((random() * all) / size) * size);
    const point = camera.point([Math.min(499.5, col + size / 2), Math.min(699.5, row + size / 2)]);
    const cell = cellAt(camera, layer, point, z);
    if (point[0] < 0 || point[1] < 0) assert.equal(cell, null);
    else assert.deepEqual(cell, { row, col, size });
  }
  camera.fit();
  assert.equal(cellAt(camera, layer, [799, 10], 0), null); // beside the map
  assert.equal(cellAt(camera, layer, [-1, 10], 0), null);
});

test("a step goes to the cell beside, or to the middle of what is seen, and stays on the map", () => {
  const frame = { left: 0, top: 0, right: 900, bottom: 100 };
  const layer = { rows: 300, cols: 300 };
  assert.deepEqual(cellBeside(null, [1, 0], 4, frame, layer), { row: 50, col: 150 });
  assert.deepEqual(cellBeside({ row: 8, col: 8 }, [1, -1], 4, frame, layer), { row: 4, col: 12 });
  assert.deepEqual(cellBeside({ row: 8, col: 8 }, [300, -300], 4, frame, layer), { row: 0, col: 299 });
});

test("the prompt's end lies on both axes, where they begin", () => {
  assert.deepEqual(boundaryOf({ boundary: 9 }, { keys_from: 0, queries_from: 4 }), { key: 9, query: 5 });
  assert.equal(boundaryOf({ boundary: null }, { keys_from: 0, queries_from: 0 }), null);
  assert.equal(boundaryOf({ boundary: 9 }, { keys_from: null, queries_from: 0 }), null);
});

const LAYER = {
  key: "3",
  name: "h.3",
  mask: "causal",
  scale: 0.125,
  rows: 600,
  cols: 1500,
  heads: [0, 1, 2, 3],
  group: 2,
  kv_heads: 2,
  width: 64,
  softcap: null,
  sinks: false,
};
const named = (axis, index) => `${axis} ${index}`;

test("a single weight names its query and its key", () => {
  const cell = { row: 4, col: 2, size: 1, mass: 1 / 3, max: 1 / 3 };
  const { number, weight, facts, note } = cellFacts(cell, LAYER, named);
  assert.deepEqual([number, weight, note], ["33%", 1 / 3, ""]);
  assert.deepEqual(facts, [
    ["query", "queries 4"],
    ["key", "keys 2"],
  ]);
});

test("a pooled cell names its ranges, which end with the map", () => {
  const cell = { row: 596, col: 1496, size: 8, mass: 0.5, max: 0.25 };
  assert.deepEqual(
    cellFacts(cell, LAYER, named).facts.map(([, value]) => value),
    ["596–599", "1496–1499", "25%"],
  );
});

test("what the mask hides has no weight, and neither has nothing", () => {
  for (const size of [1, 4]) {
    const { number, weight, note } = cellFacts({ row: 0, col: 8, size, mass: 0, max: -1 }, LAYER, named);
    assert.deepEqual([number, weight], ["hidden", null]);
    assert.match(note, /causal/);
  }
  assert.deepEqual(cellFacts(null, LAYER, named).facts, []);
});

test("the strongest keys of a row, without those that get nothing", () => {
  assert.deepEqual(strongestKeys(Float32Array.of(0, 0.25, 0.5, 0, 0.125), 2), [2, 1]);
  assert.deepEqual(strongestKeys(Float32Array.of(0, 0.25, 0), 8), [1]);
});

test("a layer's numbers", () => {
  const facts = Object.fromEntries(layerFacts(LAYER));
  assert.equal(facts["queries × keys"], "600 × 1,500");
  assert.match(facts.heads, /^4, .*2 key\/value/);
  assert.equal(facts["soft cap"], undefined);
  assert.equal(Object.fromEntries(layerFacts({ ...LAYER, softcap: 50 }))["soft cap"], "50");
  assert.equal(layerFacts({ ...LAYER, sinks: true }).length, 7);
});

test("a saved file's error is rounded up", () => {
  assert.match(precisionNote({ absolute: 0.00231, rows: 8 }), /0\.3 p.* 8 /);
  assert.match(precisionNote({ absolute: 0, rows: 8 }), /0\.000[12] p/);
  assert.equal(
    roundingNote({ losses: [2.479, 2.467], same: 0.92, score: 0.021 }),
    "The model in this file has rounded weights: the loss is 2.467 instead of 2.479, 92% of the likeliest next tokens " +
      "are the same, scores of heads are within 2.1 percentage points.",
  );
});

const layers = [
  { key: "0", heads: [0, 1, 2], group: 1, kv_heads: 3, evidence: { certified: true } },
  { key: "1", heads: [4, 5], group: 2, kv_heads: 1, evidence: { certified: true } },
];

test("thumbnails fit in one line, within bounds", () => {
  assert.deepEqual(gridSizes(layers, 300, 100, 4), { label: 36, thumb: 56, columns: 3 });
  assert.equal(gridSizes(layers, 200, 100, 4).thumb, Math.floor((200 - 50 - 36) / 3) - 4);
  assert.deepEqual(gridSizes(layers, 10, 100, 4), { label: 36, thumb: 16, columns: 1 });
});

test("many heads stand in lines of one length, and heads of one key/value head stay together", () => {
  const many = (heads, group = 1) => [{ key: "0", heads: [...Array(heads).keys()], group }];
  assert.equal(gridSizes(many(32), 900, 100, 4).columns, 32);
  assert.equal(gridSizes(many(32), 450, 100, 4).columns, 16);
  assert.equal(gridSizes(many(32), 390, 100, 4).columns, 8);
  assert.equal(gridSizes(many(12, 3), 280, 100, 4).columns, 6);
  assert.equal(gridSizes(many(32, 32), 450, 100, 4).columns, 16); // all on one key/value head
  const { columns, thumb } = gridSizes(many(13), 280, 100, 4); // nothing divides 13
  assert.ok(columns > 6 && columns < 13 && thumb >= 16);
  assert.deepEqual(columnNumbers(many(4), 4), [0, 1, 2, 3]);
  assert.deepEqual(columnNumbers(many(4), 2), []);
  assert.deepEqual(columnNumbers([...many(4), ...many(2)], 4), []);
});

test("arrow keys go from line to line, in a layer and to the next", () => {
  const wide = [0, 1].map((key) => ({ key: String(key), heads: [...Array(8).keys()] }));
  const from = (layer, head, down) =>
    Object.values(headBeside(wide, { layer, head }, [down, 0], 4)).join(" ");
  assert.deepEqual(
    [from("0", 1, 1), from("0", 5, 1), from("1", 2, -1), from("1", 6, -1), from("1", 7, 1), from("0", 2, -1)],
    ["0 5", "1 1", "0 6", "1 2", "1 7", "0 2"],
  );
});

test("arrow keys go to the same place of the next layer, as far as there is one", () => {
  assert.deepEqual(headBeside(layers, { layer: "0", head: 2 }, [1, 0], 3), { layer: "1", head: 5 });
  assert.deepEqual(headBeside(layers, { layer: "1", head: 4 }, [0, 1], 3), { layer: "1", head: 5 });
  assert.deepEqual(headBeside(layers, { layer: "0", head: 0 }, [0, -1], 3), { layer: "0", head: 0 });
});

test("a capture is certified only if every layer is, and none is missing", () => {
  assert.equal(captureSummary({ layers, missing: [] }).certified, true);
  const missing = [{ name: "gru", kind: "GRU" }];
  const incomplete = captureSummary({ layers, missing });
  assert.deepEqual([incomplete.certified, incomplete.words], [false, "Incomplete"]);
  assert.match(incomplete.absent, /GRU/);
  const convolved = captureSummary({ layers, missing: [], others: [{ name: "conv", kind: "Conv1d" }] });
  assert.equal(convolved.certified, true);
  assert.match(convolved.absent, /1 module mixes tokens in another way than by attention .*Conv1d/);
  const doubtful = [layers[0], { ...layers[1], evidence: { certified: false } }];
  assert.equal(captureSummary({ layers: doubtful, missing: [] }).words, "1 of 2 not certified");
});
