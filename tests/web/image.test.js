// Patches of pictures: which token is which, and how attention divides.

import assert from "node:assert/strict";
import { test } from "node:test";
import { isPictureAlone, patchLabel, patchOf } from "../../src/regard/show/web/data/patch_layout.js";
import { axisOf, labelAt } from "../../src/regard/show/web/data/tokens.js";
import { heatColour } from "../../src/regard/show/web/text/heat.js";
import { kindOf, outlierTokens, sharesByKind } from "../../src/regard/show/web/text/patches.js";
import { near } from "./helpers.js";

const span = (parts = {}) => ({ picture: 0, first: 2, rows: 2, cols: 3, tokens: 6, places: null, ...parts });
const tower = {
  spans: [span()],
  special: [
    [0, "CLS"],
    [1, "register 1"],
  ],
};
const names = ["CLS", "register 1", ...[1, 2].flatMap((r) => [1, 2, 3].map((c) => `row ${r}, column ${c}`))];
const layer = {
  key: "0",
  rows: 8,
  cols: 8,
  queries_of: "patches_0",
  keys_of: "patches_0",
  queries_from: 0,
  keys_from: 0,
};
const meta = {
  texts: [
    { patches_0: names, pictures: { about: "", images: [], layouts: { patches_0: tower } }, layers: [layer] },
  ],
};

test("a token is a patch, also where patches come in squares", () => {
  assert.deepEqual(patchOf(tower, 6), { span: 0, row: 1, col: 1 });
  assert.equal(patchOf(tower, 1), null);
  assert.equal(patchOf(tower, 8), null);
  const squares = { spans: [span({ cols: 4, tokens: 8, places: [0, 1, 4, 5, 2, 3, 6, 7] })], special: [] };
  assert.deepEqual(patchOf(squares, 4), { span: 0, row: 1, col: 0 });
});

test("a patch is named in full where there is room", () => {
  assert.equal(patchLabel(tower, 6, names[6], 20), "row 2, column 2");
  assert.equal(patchLabel(tower, 6, names[6], 8), "r2 c2");
  assert.equal(patchLabel(tower, 1, names[1], 10), "register 1");
  assert.equal(patchLabel(tower, 1, names[1], 5), "reg 1");
  assert.equal(patchLabel(tower, 9, " word", 4), null);
  assert.equal(labelAt(axisOf(meta, 0, layer, "keys"), 7, 8), "r2 c3");
});

test("a capture of pictures alone is known", () => {
  assert.equal(isPictureAlone(meta.texts[0]), true);
  const text = { ...layer, keys_of: "tokens" };
  assert.equal(isPictureAlone({ ...meta.texts[0], layers: [layer, text] }), false);
  assert.equal(isPictureAlone({ pictures: null, layers: [text] }), false);
});

test("attention divides between patches, CLS and registers, beside what uniform attention would give", () => {
  const weights = Float32Array.from([0.5, 0.1, 0.4, 0, 0, 0, 0, 0]);
  const shares = sharesByKind(weights, 0, tower);
  assert.deepEqual(
    shares.map(({ name }) => name),
    ["CLS", "registers", "patches"],
  );
  shares.forEach(({ share }, n) => near(share, [0.5, 0.1, 0.4][n], 1e-6));
  shares.forEach(({ uniform }) => near(uniform, 1 / 3, 1e-6)); // the other five are hidden
  assert.equal(kindOf(undefined), "text");
});

test("outliers are those of the head that is shown, or of all heads", () => {
  const heads = [
    { head: 4, outliers: [[3, 0.2]] },
    { head: 5, outliers: [[3, 0.4], [5, 0.3]] }, // prettier-ignore
    { head: 6 },
  ];
  assert.deepEqual([...outlierTokens(heads, 2, 4)], [[5, 0.2]]);
  assert.deepEqual([...outlierTokens(heads, 0)], [[3, 0.4], [5, 0.3]]); // prettier-ignore
  assert.deepEqual([...outlierTokens(heads, 0, 6)], []);
});

test("heat is clear at nothing and stays within its ends", () => {
  assert.match(heatColour(0), /\/ 0\.000\)$/);
  assert.equal(heatColour(2), heatColour(1));
  assert.equal(heatColour(-1), heatColour(0));
});
