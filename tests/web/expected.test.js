// What kinds of heads predict, told from the tokens, and which cells are outlined for it.

import assert from "node:assert/strict";
import { test } from "node:test";
import {
  expectedColumns,
  outlineNote,
  ExpectedOutline,
  outlineEdges,
} from "../../src/regard/show/web/map/expected.js";

// a b c a b b
const COPIES = [0, 1, 2, 0, 1, 1];
const text = { copies: { tokens: COPIES, target_tokens: null } };
const layer = {
  mask: "causal",
  window: null,
  stack: "",
  rows: 6,
  cols: 6,
  queries_of: "tokens",
  queries_from: 0,
  keys_from: 0,
};
const all = (kind, about = layer, sink = 0) => {
  const columns = expectedColumns(kind, text, about, sink);
  return Array.from({ length: about.rows }, (_, row) => columns(row));
};

test("induction expects what came after earlier copies, before the query itself", () => {
  assert.deepEqual(all("induction"), [[], [], [], [1], [2], [2]]);
});

test("duplicates, the token before and a sink", () => {
  assert.deepEqual(all("duplicate"), [[], [], [], [0], [1], [1, 4]]);
  assert.deepEqual(all("previous_token"), [[], [0], [1], [2], [3], [4]]);
  assert.deepEqual(all("sink", layer, 2), [[], [], [2], [2], [2], [2]]);
  assert.deepEqual(all("sink", { ...layer, mask: "full" }, 2)[0], [2]);
});

test("keys beyond the window are not expected, nor those before the first one", () => {
  assert.deepEqual(all("duplicate", { ...layer, window: 3 }), [[], [], [], [], [], [4]]);
  const later = { ...layer, rows: 2, cols: 4, queries_from: 4, keys_from: 2 };
  assert.deepEqual(all("duplicate", later), [[], [2]]); // tokens 4 and 5 on keys 2 to 5
  assert.deepEqual(all("previous_token", later), [[1], [2]]);
});

test("what cannot be told is not", () => {
  assert.equal(expectedColumns("induction", text, { ...layer, stack: "cross" }, 0), null);
  assert.equal(expectedColumns("induction", text, { ...layer, units: {} }, 0), null);
  assert.equal(expectedColumns("induction", { copies: { tokens: null } }, layer, 0), null);
  assert.equal(expectedColumns("sink", text, layer, null), null);
});

test("the note has the score here and on random repeats, with uniform attention", () => {
  const row = { scores: { induction: { value: 0.42, null: 0.02 } } };
  const repeats = { scores: { induction: { value: 0.64, null: null } } };
  const say = (x) => `${Math.round(100 * x)}%`;
  assert.match(outlineNote("induction", row, undefined, say), /on this text: 42%, uniform attention 2%\.$/);
  assert.match(outlineNote("induction", row, repeats, say), /On random tokens, repeated: 64%\.$/);
});

const camera = (zoom, left = 0, top = 0, side = 6) => ({
  zoom,
  frame: { left, top, right: left + side, bottom: top + side },
  point: (col, row) => [col * zoom, row * zoom],
});

test("single cells are outlined near, and cells of several tokens from afar", () => {
  const outline = new ExpectedOutline(expectedColumns("induction", text, layer, 0), layer);
  const near = outline.within(camera(20));
  assert.deepEqual([near.size, near.cells], [1, [[3, 1], [4, 2], [5, 2]]]); // prettier-ignore
  assert.deepEqual(outline.within(camera(20, 0, 4, 2)).cells, []); // columns 0 and 1 only
  const wide = new ExpectedOutline((row) => (row === 7 ? [0] : []), { rows: 16, cols: 16 });
  const far = wide.within(camera(0.5, 0, 0, 16));
  assert.deepEqual([far.size, far.cells], [4, [[1, 0]]]);
});

test("outlines that would cover the map are left out", () => {
  const every = new ExpectedOutline(() => [0, 1, 2, 3, 4, 5, 6, 7], { rows: 8, cols: 8 });
  assert.equal(every.within(camera(0.5, 0, 0, 8)), null);
  assert.equal(every.within(camera(20, 0, 0, 8)).cells.length, 64); // single weights always are
});

test("cells that touch share one outline", () => {
  const outline = new ExpectedOutline((row) => (row < 2 ? [0] : []), { rows: 6, cols: 6 });
  const edges = outlineEdges(outline.within(camera(20)), camera(20));
  assert.equal(edges.length, 6); // two cells, without the edge between them
  assert.deepEqual(edges[0], [0, 0, 20, 0]);
});
