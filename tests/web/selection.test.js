// The Steps view: which row, which keys, and the small example.

import assert from "node:assert/strict";
import { test } from "node:test";
import {
  exampleSteps,
  explainedRow,
  hiddenWeight,
  shownKeys,
  stageOptions,
} from "../../src/regard/show/web/steps/selection.js";
import { near } from "./helpers.js";

const keys = (weights) => weights.map((weight, key) => ({ key, weight }));

test("the chosen row, else the last; the second one of the small example", () => {
  assert.equal(explainedRow({ row: 3, example: "" }, 10, 7), 3);
  assert.equal(explainedRow({ row: -1, example: "" }, 10, 7), 7);
  assert.equal(explainedRow({ row: 10, example: "" }, 10, null), 9);
  assert.equal(explainedRow({ row: -1, example: "" }, 5, 7), 4); // a layer with fewer rows
  assert.equal(explainedRow({ row: -1, example: "2" }, 6, 7), 1);
});

test("the strongest keys are shown in order, with the first and the query's own", () => {
  const all = keys([0.01, 0.2, 0.05, 0.6, 0.1, 0.04]);
  assert.deepEqual(
    shownKeys(all, 2, 5).map(({ key }) => key),
    [0, 1, 3, 5],
  );
  assert.equal(shownKeys(all, Infinity, 5), all);
  near(hiddenWeight({ sum: 1 }, shownKeys(all, 2, 5)), 0.15, 1e-12);
  assert.equal(hiddenWeight({ sum: 0.5 }, all), 0);
});

const example = {
  tokens: ["a", "b"],
  stages: [
    { name: "Simplified", heads: [[{ keys: keys([1]) }, { keys: keys([0.5, 0.25]) }]] },
    { name: "Two heads", heads: [[{ keys: keys([1]) }], [{ keys: keys([0.5]) }]] },
  ],
};

test("an address names a stage and a head; what does not exist is the first", () => {
  const found = exampleSteps(example, "1.1", 0);
  assert.equal(found.example.name, "Two heads");
  assert.equal(found.sum, 0.5);
  assert.equal(exampleSteps(example, "0", 1).sum, 0.75);
  assert.equal(exampleSteps(example, "0", 1).name, "b");
  assert.equal(exampleSteps(example, "9.9", 0).example.name, "Simplified");
});

test("every head of a stage can be chosen", () => {
  assert.deepEqual(stageOptions(example), [
    ["0", "Simplified"],
    ["1.0", "Two heads, head 1"],
    ["1.1", "Two heads, head 2"],
  ]);
});
