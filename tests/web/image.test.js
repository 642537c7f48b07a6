// Patches of pictures: which token is which, what is looked from first, and how attention divides.

import assert from "node:assert/strict";
import { test } from "node:test";
import { isPictureAlone, patchLabel, patchOf } from "../../src/regard/show/web/data/patch_layout.js";
import { labelAt } from "../../src/regard/show/web/data/tokens.js";
import { heatColour } from "../../src/regard/show/web/image/heat.js";
import {
  firstChoice,
  heatTop,
  kindOf,
  middlePatch,
  otherTokens,
  outlierTokens,
  sharesByKind,
  tokenName,
  tokenOfPatch,
} from "../../src/regard/show/web/image/patches.js";
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

test("a token is a patch, and a patch a token, also where patches come in squares", () => {
  assert.deepEqual(patchOf(tower, 6), { span: 0, row: 1, col: 1 });
  assert.equal(patchOf(tower, 1), null);
  assert.equal(patchOf(tower, 8), null);
  const squares = { spans: [span({ cols: 4, tokens: 8, places: [0, 1, 4, 5, 2, 3, 6, 7] })], special: [] };
  for (let token = 2; token < 10; token++)
    assert.equal(tokenOfPatch(squares, /** @type {any} */ (patchOf(squares, token))), token);
  assert.deepEqual(patchOf(squares, 4), { span: 0, row: 1, col: 0 });
});

test("there is no token outside of the picture, nor outside of a window", () => {
  for (const [row, col] of [
    [-1, 0],
    [0, 3],
    [2, 0],
  ])
    assert.equal(tokenOfPatch(tower, { span: 0, row, col }), -1);
  assert.equal(tokenOfPatch(tower, { span: 1, row: 0, col: 0 }), -1);
  const window = { spans: [span({ tokens: 2, places: [1, 4] })], special: [] };
  assert.equal(tokenOfPatch(window, { span: 0, row: 0, col: 0 }), -1);
  assert.equal(tokenOfPatch(window, { span: 0, row: 1, col: 1 }), 3);
});

test("CLS is looked from first, then the middle of the picture, and in a text its last word", () => {
  assert.equal(firstChoice(tower, 0, 8), 0);
  assert.equal(firstChoice({ ...tower, special: [] }, 2, 6), 6);
  assert.equal(firstChoice({ ...tower, special: [] }, 0, 12), 11);
  assert.equal(middlePatch(tower), 6);
  assert.equal(middlePatch({ spans: [], special: [] }), -1);
});

test("a patch is named in full where there is room", () => {
  assert.equal(patchLabel(tower, 6, names[6], 20), "row 2, column 2");
  assert.equal(patchLabel(tower, 6, names[6], 8), "r2 c2");
  assert.equal(patchLabel(tower, 1, names[1], 10), "register 1");
  assert.equal(patchLabel(tower, 1, names[1], 5), "reg 1");
  assert.equal(patchLabel(tower, 9, " word", 4), null);
  assert.equal(labelAt(meta, 0, layer, "keys", 7, 8), "r2 c3");
  assert.equal(tokenName({ names: ["\n"], layout: { spans: [], special: [] } }, 0, 8), "↵");
});

test("tokens beside the patches are listed, and a capture of pictures alone is known", () => {
  assert.deepEqual(otherTokens(meta, 0, layer, "keys"), [0, 1]);
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

test("the colours end at the strongest patch, whatever CLS gets, and uniform attention stays pale", () => {
  const weights = Float32Array.from([0.9, 0, 0.02, 0.08, 0, 0, 0, 0]);
  const strong = weights.map((w) => 8 * w);
  near(heatTop(weights, 0, tower, new Set()), 3 / 8, 1e-6);
  near(heatTop(strong, 0, tower, new Set()), 0.64, 1e-6);
  near(heatTop(strong, 0, tower, new Set([3])), 3 / 8, 1e-6);
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
