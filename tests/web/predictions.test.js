// Next-token predictions: one position out of a saved page's arrays, and how they are said.

import assert from "node:assert/strict";
import { test } from "node:test";
import { percent } from "../../src/regard/show/web/data/format.js";
import { nextSentence } from "../../src/regard/show/web/parts/prediction_list.js";
import { describePrediction } from "../../src/regard/show/web/source/arithmetic/saved_weights.js";

const arrays = {
  ids: Uint32Array.of(4, 17, 99),
  places: Uint32Array.of(0, 1, 2, 0, 1, 2), // three positions of two tokens
  probabilities: Float32Array.of(0.5, 0.25, 0.75, 0.125, 0.5, 0.375),
  losses: Float32Array.of(Math.log(4), NaN),
  ranks: Uint32Array.of(2, 0),
};
const words = [" the", " cat", "."];
const likely = (n) => ({ id: arrays.ids[arrays.places[n]], token: words[arrays.places[n]] });

test("a position has its tokens, and the one that follows", () => {
  const found = describePrediction(arrays, likely, ["a", " cat", "b"], 0);
  assert.deepEqual(found.likeliest, [
    { id: 4, token: " the", probability: 0.5 },
    { id: 17, token: " cat", probability: 0.25 },
  ]);
  assert.equal(found.next.token, " cat");
  assert.equal(found.next.rank, 2);
  assert.ok(Math.abs(found.next.probability - 0.25) < 1e-6);
});

test("nothing follows padding or the last token", () => {
  assert.equal(describePrediction(arrays, likely, ["a", "b", "c"], 1).next, null);
  assert.equal(describePrediction(arrays, likely, ["a", "b", "c"], 2).next, null);
  assert.equal(describePrediction(arrays, likely, null, 0).next.token, null);
});

test("a probability has as many digits as it needs", () => {
  const said = [0, 1, 0.9995, 0.9994, 0.42, 0.0996, 0.042, 0.04, 0.0012, 0.00012, 1e-7].map(percent);
  assert.deepEqual(said, [
    "0%",
    "100%",
    ">99.9%",
    ">99.9%",
    "42%",
    "10%",
    "4.2%",
    "4%",
    "0.12%",
    "0.01%",
    "<0.01%",
  ]);
});

test("the token that follows is named with its probability and rank", () => {
  const next = { token: " cat", probability: 0.042, rank: 6, loss: 3.17 };
  const prediction = { position: 0, likeliest: [], next };
  assert.equal(nextSentence(prediction), "In the text follows “·cat”: 4.2%, rank 6, loss 3.17.");
  const first = { ...prediction, next: { ...next, rank: 1, token: null } };
  assert.equal(nextSentence(first), "In the text follows a token: 4.2%, the likeliest, loss 3.17.");
  const after = { ...prediction, next: { ...next, probability: 0.001, rank: 1234 } };
  assert.equal(
    nextSentence(after, prediction),
    "In the text follows “·cat”: 4.2% (rank 6) → 0.1% (rank 1,234).",
  );
  assert.equal(nextSentence({ ...prediction, next: null }), "Nothing follows in the text.");
  assert.equal(nextSentence(after, { ...prediction, next: null }), "Nothing follows in the text.");
});
