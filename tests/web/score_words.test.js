// Titles and sentences of scores, and their order, from the list that Python sends.

import assert from "node:assert/strict";
import { test } from "node:test";
import { inListOrder, scoreAbout, scoreTitle } from "../../src/regard/show/web/data/score_words.js";
import { applySettings } from "../../src/regard/show/web/data/settings.js";
import { namesOf, sentence } from "../../src/regard/show/web/heads/scores.js";

const scores = [
  { name: "previous_token", title: "previous token", about: "Attention on the token before the query." },
  { name: "itself", title: "self", about: "Attention on the query's own token." },
];
// In each test: the tests of all files share one process.
const settle = () => applySettings({ tile: 256, thumb: 64, scores });

test("a score is called by its title, and one that is not listed by its own name", () => {
  settle();
  assert.equal(scoreTitle("itself"), "self");
  assert.equal(scoreTitle("my_own_score"), "my own score");
  assert.equal(scoreTitle("constructor"), "constructor");
  assert.equal(scoreAbout("itself"), "Attention on the query's own token.");
  assert.equal(scoreAbout("my_own_score"), "");
});

test("scores stand in the order of the list, others after them", () => {
  settle();
  assert.deepEqual(inListOrder(["z", "itself", "previous_token", "a"]), [
    "previous_token",
    "itself",
    "z",
    "a",
  ]);
  const heads = [{ scores: { a: {}, itself: {} } }, { scores: { itself: {}, previous_token: {} } }];
  assert.deepEqual(namesOf(heads), ["previous_token", "itself", "a"]);
});

test("a sentence names the score by its title", () => {
  settle();
  assert.match(sentence("itself", { value: 0.25, null: 0.1 }), /^self 25%; uniform baseline 10%$/);
});
