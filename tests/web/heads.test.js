// The gallery of heads: which are shown, in which order, how keys walk, and what an address compares.

import assert from "node:assert/strict";
import { test } from "node:test";
import { HeadRows } from "../../src/regard/show/web/data/head_rows.js";
import { describeScores } from "../../src/regard/show/web/model/head_scores.js";
import { labelsOf, labelWords } from "../../src/regard/show/web/parts/head_words.js";
import {
  filterHeads,
  galleryTarget,
  headName,
  highestRow,
  labelOptions,
  matrixScore,
  sortHeads,
} from "../../src/regard/show/web/heads/order.js";
import { formatPair, parsePair } from "../../src/regard/show/web/compare/pair.js";

const head = (layer, number, labels = [], scores = {}) => ({ layer, head: number, labels, scores });
const induction = (value) => ({ induction: { value } });
const HEADS = [
  head("0", 0, ["sink"], induction(0.1)),
  head("0", 1, [], induction(null)),
  head("1", 0, ["induction", "local"], induction(0.7)),
  head("1", 1, ["local"]),
  head("1", 2, [], induction(0.3)),
];
const names = (heads) => heads.map(headName);

test("labels come as a list, or as one", () => {
  assert.deepEqual(labelsOf({ labels: ["a", "b"], label: "a" }), ["a", "b"]);
  assert.deepEqual(labelsOf({ label: "a" }), ["a"]);
  assert.deepEqual(labelsOf({ label: null }), []);
});

test("heads are filtered by layer and label", () => {
  assert.deepEqual(filterHeads(HEADS, { label: "any", layerFilter: "all" }), HEADS);
  assert.deepEqual(names(filterHeads(HEADS, { label: "local", layerFilter: "all" })), ["1/0", "1/1"]);
  assert.deepEqual(names(filterHeads(HEADS, { label: "none", layerFilter: "1" })), ["1/2"]);
  assert.deepEqual(filterHeads(HEADS, { label: "__proto__", layerFilter: "9" }), []);
});

test("heads without a score come last, and labelled ones first", () => {
  assert.deepEqual(names(sortHeads(HEADS, "induction")), ["1/0", "1/2", "0/0", "0/1", "1/1"]);
});

test("labels are offered with how many heads have them", () => {
  const options = labelOptions(HEADS);
  assert.deepEqual(
    options.map(([value]) => value),
    ["any", "induction", "local", "sink", "none"],
  );
  assert.match(options[2][1], /^local \(2\)$/);
  assert.match(options[4][1], /\(2\)$/);
});

test("keys walk through the rows of cards and stay in the gallery", () => {
  assert.equal(galleryTarget("ArrowDown", 1, 3, 8), 4);
  assert.equal(galleryTarget("ArrowDown", 6, 3, 8), 7);
  assert.equal(galleryTarget("ArrowUp", 1, 3, 8), 0);
  assert.equal(galleryTarget("End", 1, 3, 8), 7);
  assert.equal(galleryTarget("Enter", 1, 3, 8), null);
  assert.equal(galleryTarget("toString", 1, 3, 8), null);
});

test("labels in words, and what is said without one", () => {
  assert.equal(labelWords(HEADS[2]), "induction, local");
  assert.equal(labelWords(HEADS[4]), "no clear pattern");
});

test("the matrix shows the chosen score, or the first that says what a head finds", () => {
  assert.equal(matrixScore("entropy", ["sink", "entropy"]), "entropy");
  assert.equal(matrixScore("gone", ["entropy", "sink", "induction"]), "induction");
  assert.equal(matrixScore("", ["entropy"]), "entropy");
  assert.equal(matrixScore("", []), "");
  assert.equal(highestRow(HEADS, "induction"), HEADS[2]);
  assert.equal(highestRow(HEADS, "gone"), undefined);
  assert.equal(highestRow([], "induction"), undefined);
});

test("rows that have come stand in the order of the layers", async () => {
  const rows = new HeadRows({
    layerHeads: async (text, layer) => HEADS.filter((row) => row.layer === layer),
  });
  const layers = [{ key: "0" }, { key: "1" }];
  assert.equal(rows.row(0, "1", 0), undefined);
  await rows.layer(0, "1");
  assert.deepEqual(names(rows.all(0, layers)), ["1/0", "1/1", "1/2"]);
  await rows.layer(0, "0");
  assert.deepEqual(names(rows.all(0, layers)), names(HEADS));
  assert.equal(rows.row(0, "1", 0), HEADS[2]);
  assert.deepEqual(rows.all(1, layers), []);
});

const meta = { texts: [{ layers: [{ key: "0", heads: [0, 3] }] }, { layers: [{ key: "a.1", heads: [1] }] }] };
const [A, B, C] = [
  { text: 0, layer: "0", head: 3 },
  { text: 1, layer: "a.1", head: 1 },
  { text: 0, layer: "0", head: 0 },
];

test("a pair is what its address says, without heads that do not exist", () => {
  assert.equal(formatPair([A, B]), "0/0/3,1/a.1/1");
  assert.deepEqual(parsePair(meta, formatPair([A, B])), [A, B]);
  assert.deepEqual(parsePair(meta, "0/0/1,9/x/y,__proto__/0/0,0/0/3"), [A]);
  assert.deepEqual(parsePair(meta, "0/0/0,0/0/3,1/a.1/1"), [C, A]);
  assert.deepEqual(parsePair(meta, ""), []);
});

test("a head of a short text is called unsure with its interval, never one of which nothing stands out", () => {
  const words = { targets: { induction: "there" }, min_scores: { induction: 0.4 } };
  const say = (value, low = value, high = value) =>
    describeScores({ induction: { value, null: 0.09, low, high } }, words).split(" of its")[0];
  assert.equal(say(0.66, 0.09, 1), "Too few tokens to be sure: it puts 66% (95% interval 9–100%)");
  assert.equal(say(0.66), "It puts 66%");
  assert.equal(say(0.3), "Not clear enough for a label: it puts 30%");
  assert.equal(say(0.12), "Nothing stands out: it puts 12%");
});
