// What is compared, and what the page's texts are called.

import assert from "node:assert/strict";
import { test } from "node:test";
import { captureTitle, textsName } from "../../src/regard/show/web/data/layers.js";
import { differenceSource } from "../../src/regard/show/web/compare/difference.js";
import { isSameShape } from "../../src/regard/show/web/data/quantity.js";
import { pairOf } from "../../src/regard/show/web/compare/pair.js";
import { comparison } from "../../src/regard/show/web/compare/score_table.js";

const layer = (key, heads) => ({ key, heads });
const text = (model, layers, more = {}) => ({ model, title: `of ${model}`, layers, removed: false, ...more });
const two = [layer("0", [0, 1]), layer("1", [0, 1])];
const state = (more) => ({ text: 0, layer: "1", head: 1, pair: "", ...more });

test("texts of one model are texts, those of several are captures with their models", () => {
  const one = { texts: [text("a", two), text("a", two)] };
  assert.equal(textsName(one), "Text");
  assert.equal(captureTitle(one, 1), "of a");
  const several = { texts: [text("a", two), text("b", two)] };
  assert.equal(textsName(several), "Capture");
  assert.equal(captureTitle(several, 1), "of b, b");
  assert.equal(textsName({ texts: [text("a", two), text("b", two, { removed: true })] }), "Text");
});

test("a head is compared with itself in another text of the same shape, or else with the next head", () => {
  const [, other] = pairOf({ texts: [text("a", two), text("b", two)] }, state());
  assert.deepEqual(other, { text: 1, layer: "1", head: 1 });
  const alone = { texts: [text("a", two)] };
  assert.deepEqual(pairOf(alone, state()), [
    { text: 0, layer: "1", head: 1 },
    { text: 0, layer: "0", head: 0 },
  ]);
  const small = { texts: [text("a", two), text("b", [layer("0", [0])])] }; // it has no such head
  assert.deepEqual(pairOf(small, state())[1], { text: 0, layer: "0", head: 0 });
  const long = two.map((one) => ({ ...one, rows: 9, cols: 9 })); // there would be no difference to see
  assert.deepEqual(pairOf({ texts: [text("a", two), text("a", long)] }, state())[1], {
    text: 0,
    layer: "0",
    head: 0,
  });
});

test("an address names both heads, or one", () => {
  const meta = { texts: [text("a", two), text("b", two)] };
  assert.deepEqual(pairOf(meta, state({ pair: "1/0/1,0/1/0" })), [
    { text: 1, layer: "0", head: 1 },
    { text: 0, layer: "1", head: 0 },
  ]);
  assert.deepEqual(pairOf(meta, state({ pair: "1/0/1,9/9/9" }))[1], { text: 0, layer: "0", head: 1 });
});

test("the tiles of a difference are those of both heads, subtracted where they are", async () => {
  const asked = [];
  const source = {
    atOnce: 4,
    async tile({ text, layer, head, z, i, j }) {
      asked.push([text, layer, head, z, i, j]);
      const mass = Float32Array.from([text === 0 ? 0.75 : 0.5, 0]);
      return { rows: 1, cols: 2, mass, max: Float32Array.from([1, -1]) };
    },
  };
  const a = { text: 0, layer: "1", head: 2 };
  const b = { text: 1, layer: "0", head: 3 };
  const own = differenceSource(source, a, b);
  const { mass, max } = await own.tile({ text: 0, layer: "1", head: 2, z: 3, i: 4, j: 5 });
  assert.deepEqual([...mass], [0.25, 0]);
  assert.deepEqual([...max], [0, -1]); // hidden in both
  assert.deepEqual(asked, [
    [0, "1", 2, 3, 4, 5],
    [1, "0", 3, 3, 4, 5],
  ]);
  assert.equal(own.atOnce, 4);
  assert.ok(isSameShape({ rows: 2, cols: 3 }, { rows: 2, cols: 3 }));
  assert.ok(!isSameShape({ rows: 2, cols: 3 }, { rows: 3, cols: 3 }));
});

test("one sentence says how two heads differ", () => {
  const row = (induction, distance) => ({
    scores: { induction: { value: induction }, distance: { value: distance } },
  });
  assert.equal(
    comparison([row(0.55, 99), row(0.02, 35)]),
    "They differ most in induction: A 55%, B 2%. Mean distance back: A 99, B 35 tokens.",
  );
  assert.equal(comparison([row(0.5, 9), row(0.5, 9)]), "A and B do the same: no score differs.");
  assert.equal(comparison([row(0.5, 9), undefined]), "");
});
