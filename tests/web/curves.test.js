// The Time view's curves: which scores, which scale, which head.

import assert from "node:assert/strict";
import { test } from "node:test";
import {
  chosenRunHead,
  highestHead,
  historyTop,
  lossChart,
  overRun,
  scoreChart,
  scoreNames,
} from "../../src/regard/show/web/time/curves.js";

const STEPS = [0, 100, 200];
const history = {
  heads: [[[0, 0.1]], [[0.3, null]], [[0.34, 0.2]]],
  null: [0.05, 0.05, 0.05],
};

test("the scores that are asked for most come first", () => {
  assert.deepEqual(scoreNames({ sink: 1, previous_token: 1, induction: 1 }), [
    "induction",
    "previous_token",
    "sink",
  ]);
  assert.deepEqual(scoreNames({}), []);
});

test("the scale holds the whole run, and stays below 1 for shares", () => {
  assert.equal(historyTop("induction", history), 0.4);
  assert.equal(historyTop("distance", history), 0.34);
  assert.equal(historyTop("induction", { heads: [[[0.99]]], null: [null] }), 1);
  assert.ok(historyTop("induction", { heads: [[[null]]], null: [null] }) > 0);
});

test("the highest head, and none without scores", () => {
  assert.deepEqual(
    highestHead([
      [0.1, null],
      [0.4, 0.3],
    ]),
    { layer: 1, head: 0, value: 0.4 },
  );
  assert.equal(highestHead([[null]]), null);
});

test("the chosen head, or the highest at the end", () => {
  assert.deepEqual(chosenRunHead("0/1", history), { layer: 0, head: 1 });
  const { layer, head } = chosenRunHead("9/9", history);
  assert.deepEqual([layer, head], [0, 0]);
  assert.deepEqual(chosenRunHead("", { heads: [[[null]]], null: [] }), { layer: 0, head: 0 });
});

test("a curve for each head, one for the baseline, one for the chosen head", () => {
  const drawn = scoreChart({
    steps: STEPS,
    history,
    chosen: { layer: 0, head: 1 },
    name: "induction",
    title: "induction",
    top: 0.4,
    say: String,
    mark: 100,
  });
  assert.deepEqual(
    drawn.series.map(({ kind }) => kind),
    ["faint", "faint", "null", "own"],
  );
  // Lines that stand clear of 0 at the end have names; that of the chosen head is the one in front.
  assert.deepEqual(
    drawn.series.map(({ name }) => name),
    ["0.0", "", "uniform", "head 0.1"],
  );
  assert.deepEqual(drawn.series[3].points, [
    [0, 0.1],
    [100, null],
    [200, 0.2],
  ]);
  assert.deepEqual([drawn.x.low, drawn.x.high, drawn.x.say(20000)], [0, 200, "20k"]);
  assert.deepEqual(overRun(STEPS, (at) => at)[2], [200, 2]);
});

test("losses are drawn if there are any", () => {
  const run = { steps: STEPS, loss: { steps: [1, 2], values: [5, null] }, validation: [4, null, 3] };
  const drawn = lossChart(run, 100);
  assert.equal(drawn.y.high, 5);
  assert.deepEqual(drawn.series[0].points, [
    [1, 5],
    [2, null],
  ]);
  const nothing = { steps: STEPS, loss: { steps: [], values: [] }, validation: [null, null, null] };
  assert.equal(lossChart(nothing, 100), null);
});
