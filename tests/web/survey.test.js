// The Survey view: which scores, which points, which head.

import assert from "node:assert/strict";
import { test } from "node:test";
import {
  axisEnd,
  chosenRow,
  chosenScores,
  excerptOf,
  rangeName,
  scatterChart,
  surveyRows,
} from "../../src/regard/show/web/survey/rows.js";
import "./helpers.js";

/** @param {number} head */
const row = (head, scores) => ({ layer: "3", head, label: null, labels: [], sentence: "", scores });
const survey = {
  model: "m",
  windows: 2,
  tokens: 64,
  names: ["sink", "induction", "distance"],
  heads: [
    row(0, { sink: 0.5, distance: 9 }),
    row(1, { sink: 0.1, induction: 0.4 }),
    row(2, { sink: 0.2, induction: 0.6 }),
  ],
};

test("the scores are those of the address, or the first that there are", () => {
  assert.deepEqual(chosenScores(survey, { surveyAcross: "sink", surveyUp: "distance" }), {
    across: "sink",
    up: "distance",
  });
  assert.deepEqual(chosenScores(survey, { surveyAcross: "", surveyUp: "constructor" }), {
    across: "induction",
    up: "sink",
  });
  assert.deepEqual(chosenScores({ ...survey, names: ["sink"] }, { surveyAcross: "", surveyUp: "" }), {
    across: "sink",
    up: "sink",
  });
});

test("a head without one of the scores is no point, and the chosen one stands over the others", () => {
  const { series, label } = scatterChart(survey, { across: "sink", up: "induction" }, "3/1");
  assert.deepEqual(
    series.map(({ id, points, kind }) => [id, ...points[0], kind]),
    [
      ["3/2", 0.2, 0.6, "plain"],
      ["3/1", 0.1, 0.4, "own"],
    ],
  );
  assert.equal(series[0].about, "Layer 3, head 2");
  assert.equal(label, "Every head by its sink and induction");
});

test("the head with the highest score is described until another is chosen", () => {
  assert.equal(chosenRow(survey, "", "induction").head, 2);
  assert.equal(chosenRow(survey, "3/0", "induction").head, 0);
  assert.equal(chosenRow(survey, "__proto__", "nothing").head, 0);
});

test("axes end above the highest score, and at 1 for shares", () => {
  assert.equal(axisEnd("sink", [0.99]), 1);
  assert.equal(axisEnd("sink", []), 0.1);
  assert.equal(axisEnd("distance", [100]), 105);
});

test("distances have names, and excerpts gaps", () => {
  assert.deepEqual(
    [
      { from: 1, below: 2 },
      { from: 4, below: 8 },
    ].map(rangeName),
    ["1", "4–7"],
  );
  const tokens = excerptOf({
    window: 0,
    weight: 0.9,
    query: 2,
    positions: [0, 7, 8],
    tokens: ["a", "b", "c"],
    keys: [[1, 0.9]],
  });
  assert.deepEqual(
    tokens.map(({ gap, isQuery, weight }) => [gap, isQuery, weight]),
    [
      [false, false, null],
      [true, false, 0.9],
      [false, true, null],
    ],
  );
});

test("the numbers are those of every head", () => {
  assert.deepEqual(surveyRows(survey)[2], ["3", 1, "", 0.1, 0.4, null]);
});

test("the labelled heads that are furthest out have names", () => {
  const places = [
    [0.9, 0.9, []],
    [0.1, 0.8, ["sink"]],
    [0.7, 0.1, ["sink"]],
    [0.5, 0.5, ["sink"]],
    [0.2, 0.1, ["sink"]],
    [0.1, 0.1, ["sink"]],
  ];
  const heads = places.map(([x, y, labels], n) => ({ ...row(n, { sink: x, induction: y }), labels }));
  const { series } = scatterChart({ ...survey, heads }, { across: "sink", up: "induction" }, "");
  const named = series.flatMap(({ name }) => name || []);
  assert.deepEqual(named, ["3.1", "3.2", "3.3", "3.4"]);
});
