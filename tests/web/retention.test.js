// The Cache view's tables: what a head needs, and what is said and drawn of it.

import assert from "node:assert/strict";
import { test } from "node:test";
import {
  firstMeasured,
  retainedSentence,
  meanShares,
  neededPlace,
  ownPolicies,
  policySentence,
  retentionChart,
  sharesOf,
} from "../../src/regard/show/web/cache/retention.js";

/** Two heads of a layer at two budgets: the second one loses nothing at 8 keys. */
const TABLE = {
  tokens: 16,
  policies: ["tova", "random", "best"],
  budgets: [1, 8],
  shares: [
    [
      [0.5, 0.25],
      [0.75, null],
    ],
    [
      [0.125, 0.125],
      [0.5, null],
    ],
    [
      [0.75, 0.5],
      [0.96, null],
    ],
  ],
  needed: [
    [null, 8],
    [null, 8],
    [8, 8],
  ],
};
const WITHOUT = { why: "Layer 1 is linear." };

test("a head needs a budget, more than all of them, or has no cache", () => {
  assert.deepEqual(
    [0, 1].map((head) => neededPlace(TABLE, "tova", head)),
    [2, 1],
  );
  assert.equal(neededPlace(WITHOUT, "tova", 0), null);
  assert.equal(neededPlace(undefined, "tova", 0), undefined);
  assert.equal(firstMeasured([undefined, WITHOUT, TABLE]), TABLE);
  assert.deepEqual(ownPolicies(TABLE), ["tova"]);
  assert.deepEqual(ownPolicies({ ...TABLE, policies: ["random", "best"] }), ["random", "best"]);
});

test("a head that loses nothing keeps all", () => {
  assert.deepEqual(sharesOf(TABLE, "tova", 1), [0.25, 1]);
  assert.deepEqual(meanShares([TABLE, WITHOUT, undefined], "tova"), [0.375, 0.875]);
});

test("sentences name the budget and both baselines", () => {
  assert.equal(
    policySentence([TABLE, WITHOUT], "tova"),
    "With tova, 0 of 2 heads keep 95% of their attention in a cache of one key for 16 tokens " +
      "(random keys 0, the best possible 0); 1 needs more than 8 keys.",
  );
  assert.match(policySentence([TABLE], "best"), /\(random keys 0\); with 8 keys all of them do\.$/);
  assert.equal(policySentence([WITHOUT], "tova"), "");
  assert.equal(
    retainedSentence(TABLE, "tova", 0),
    "With tova and 8 keys it keeps 75% of its attention (random keys 50%, the best possible 96%).",
  );
});

test("the chosen policy is drawn last, and the mark is at a budget", () => {
  const shares = (name) => sharesOf(TABLE, name, 0);
  const { series, mark, x } = retentionChart({ table: TABLE, policy: "tova", of: "a head", shares, mark: 1 });
  assert.deepEqual(
    series.map(({ name, kind }) => [name, kind]),
    [
      ["random", "null"],
      ["best", "other"],
      ["tova", "own"],
    ],
  );
  assert.equal(mark, 1);
  assert.deepEqual([0, 0.5, 1].map(x.say), ["1", "", "8"]);
  assert.equal(retentionChart({ table: TABLE, policy: "tova", of: "", shares, mark: 2 }).mark, null);
});
