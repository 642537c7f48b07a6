// What cells stand for: units and their edges, contributions, and how their numbers are written.

import assert from "node:assert/strict";
import { test } from "node:test";
import { areWeights, isSigned, PLAIN, quantityOf, spell } from "../../src/regard/show/web/data/quantity.js";
import { axisOf, tokenAt } from "../../src/regard/show/web/data/tokens.js";
import {
  edgesOn,
  firstToken,
  inUnits,
  lastToken,
  unitAt,
  unitNames,
} from "../../src/regard/show/web/data/units.js";
import { marksOf, noteOf } from "../../src/regard/show/web/map/legend.js";
import { mapScale } from "../../src/regard/show/web/parts/map_scale.js";
import { writtenText } from "../../src/regard/show/web/text/offsets.js";
import { rankingLine, rankingNotes, strongest } from "../../src/regard/show/web/text/ranking.js";
import { levels, shadeOf, shadingTop } from "../../src/regard/show/web/text/shading.js";
import { tileDifference } from "../../src/regard/show/web/compare/difference.js";
import { columnOf, rowOf, Head } from "../../src/regard/show/web/source/arithmetic/weights.js";
import { headArrays, near, weightsOf } from "./helpers.js";

const TOKENS = ["<s>", "The", " light", "house", " is", " lit", ".", " It", " is"];
const WORDS = [0, 1, 2, 4, 5, 6, 7, 8, 9];
const SENTENCES = [0, 1, 7, 9];
const LAYER = {
  key: "0",
  heads: [0, 1],
  rows: 9,
  cols: 9,
  stack: "",
  queries_of: "tokens",
  keys_of: "tokens",
  queries_from: 0,
  keys_from: 0,
};
const TEXT = {
  title: "one",
  tokens: TOKENS,
  spans: { tokens: { words: WORDS, sentences: SENTENCES } },
  shades: ["weights", "values", "logit"],
  predicted: { start: 4, positions: null },
  layers: [LAYER],
};
const META = { texts: [TEXT, { ...TEXT, title: "two" }, { ...TEXT, layers: [{ ...LAYER, rows: 8 }] }] };
const STATE = {
  text: 0,
  layer: "0",
  head: 1,
  row: -1,
  shade: "weights",
  units: "tokens",
  token: -1,
};
const words = inUnits(META, LAYER, { units: "words", unitsOf: 0 });

test("words stand for their tokens, on both axes, and keep the text", () => {
  assert.deepEqual([words.rows, words.cols], [8, 8]);
  assert.equal(words.units.queries.texts.join(""), TOKENS.join(""));
  assert.equal(tokenAt(axisOf(META, 0, words, "keys"), 2), "lighthouse"); // without the space before it
  assert.equal(unitAt(words, "keys", 3), 2);
  assert.deepEqual([firstToken(words, "keys", 2), lastToken(words, "keys", 2)], [2, 3]);
  assert.deepEqual([unitAt(words, "keys", -1), firstToken(words, "keys", -1)], [-1, -1]);
  assert.equal(inUnits(META, LAYER, { units: "tokens", unitsOf: 0 }), LAYER);
  assert.equal(unitAt(LAYER, "keys", 5), 5);
  const { tokens, queries, keys } = writtenText(META, 0, words);
  assert.deepEqual([tokens.length, queries, keys], [8, 0, 0]);
});

test("an axis that begins inside of a word begins with its rest", () => {
  assert.deepEqual(edgesOn(WORDS, 3, 4), { edges: [0, 1, 2, 3, 4], from: 2 });
  const later = { ...LAYER, rows: 6, queries_from: 3 };
  const { units, rows } = inUnits(META, later, { units: "words", unitsOf: 0 });
  assert.deepEqual([rows, units.queries.from, units.queries.edges[1]], [6, 2, 1]);
});

test("what a text does not have is replaced by what it has", () => {
  assert.deepEqual(quantityOf(META, STATE), PLAIN);
  const bare = { texts: [{ ...TEXT, spans: {}, shades: ["weights"], predicted: null }] };
  assert.deepEqual(quantityOf(bare, { ...STATE, units: "words", shade: "logit", token: 3 }), PLAIN);
  assert.deepEqual(unitNames(bare.texts[0]), ["tokens"]);
  const asked = { ...STATE, units: "words", shade: "logit", token: 3 };
  assert.deepEqual(quantityOf(META, asked), {
    ...{ shade: "logit", units: "words", unitsOf: 0, position: 4, token: 3 },
  });
  assert.equal(quantityOf(META, { ...asked, row: 6 }).position, 6);
  const stored = { texts: [{ ...TEXT, predicted: { start: 4, positions: [4] } }] };
  assert.equal(quantityOf(stored, { ...asked, row: 6 }).position, 4); // a file holds that one only
});

const difference = { ...PLAIN, difference: true };
const logit = { ...PLAIN, shade: "logit", position: 4, token: 3 };

test("numbers that may have a sign are written with it", () => {
  assert.deepEqual(
    [0.31, 0].map((x) => spell(PLAIN, x)),
    ["31%", "0%"],
  );
  assert.deepEqual(
    [0.31, -0.004, 0].map((x) => spell(difference, x)),
    ["+31 points", "−0.4 points", "0 points"],
  );
  assert.deepEqual(
    [2.5, -2.5, 0, -2e-5].map((x) => spell(logit, x)),
    ["+2.5", "−2.5", "0", "≈0"],
  );
  assert.deepEqual([PLAIN, difference, logit].map(isSigned), [false, true, true]);
  assert.deepEqual([PLAIN, difference, logit].map(areWeights), [true, false, false]);
});

test("the legend of signed numbers has zero in its middle and the same end on both sides", () => {
  const scale = mapScale("linear", 0.2, 100, difference);
  assert.deepEqual(marksOf(scale, false, difference), [
    [0, "−20 points"],
    [0.5, "0"],
    [1, "+20 points"],
  ]);
  assert.equal(marksOf(scale, true, difference)[0][1], "≤ −20 points");
  const token = "“lit”";
  assert.equal(noteOf("mass", 0, PLAIN, token), "One cell is one weight.");
  assert.match(noteOf("mass", 2, PLAIN, token), /^One cell of 4 × 4 tokens is attention mass, summed/);
  assert.match(noteOf("mass", 0, { ...PLAIN, units: "words" }, token), /^One cell from word to word is/);
  assert.match(noteOf("mass", 0, logit, token), /logit of “lit”.* Row 4 adds up to what/);
});

test("tiles of words are the weights summed over keys and averaged over queries", async () => {
  const arrays = headArrays({ T: 9, seed: 5 });
  const [dense, head] = [weightsOf(arrays), new Head(arrays)];
  const { edges } = words.units.keys;
  const factors = Float32Array.from({ length: 9 }, (_, j) => j - 3.5);
  for (const factor of [null, factors]) {
    const parts = { factors: factor, queries: edges, keys: edges };
    const tile = await head.tile(0, 0, 0, parts);
    const coarse = await head.tile(1, 0, 0, parts);
    assert.deepEqual([tile.rows, tile.cols, coarse.rows, coarse.cols], [8, 8, 4, 4]);
    const cell = (top, bottom, left, right) => {
      let sum = 0;
      for (let i = top; i < bottom; i++)
        for (let j = left; j < right; j++) sum += dense[i][j] * (factor ? factor[j] : 1);
      return sum / (bottom - top);
    };
    for (let y = 0; y < 8; y++) {
      const row = rowOf(head, y, parts);
      const column = columnOf(head, y, parts);
      for (let x = 0; x < 8; x++) {
        const wanted = cell(edges[y], edges[y + 1], edges[x], edges[x + 1]);
        near(tile.mass[y * 8 + x], wanted, 1e-6);
        near(row[x], wanted, 1e-6);
        near(column[x], cell(edges[x], edges[x + 1], edges[y], edges[y + 1]), 1e-6);
        assert.equal(tile.max[y * 8 + x] < 0, edges[x] >= edges[y + 1]); // hidden by the causal mask
      }
    }
    near(coarse.mass[1 * 4 + 0], cell(edges[2], edges[4], edges[0], edges[2]), 1e-6);
    if (factor) assert.ok(tile.max.every((max) => max === 0 || max === -1));
  }
});

test("what the mask hides in one of two texts only is shown", () => {
  const [a, b] = [
    { rows: 1, cols: 1, mass: Float32Array.of(0), max: Float32Array.of(-1) },
    { rows: 1, cols: 1, mass: Float32Array.of(0.25), max: Float32Array.of(0.25) },
  ];
  assert.deepEqual([tileDifference(a, b).mass[0], tileDifference(a, b).max[0]], [-0.25, 0]);
});

test("signed shades: the ground is plain, and both signs have colours", () => {
  const weights = Float32Array.of(-2, 0, 1, 2);
  assert.equal(
    shadingTop(weights, 0, () => true),
    2,
  );
  const shaded = { token: 3, weights, from: 0, without: new Set(), top: 2, signed: true };
  const [low, none, some, high] = levels(shaded, 4, "linear");
  assert.deepEqual(
    [low, some, high].map((level) => shadeOf(level, true).t),
    [0, 0.75, 1],
  );
  assert.equal(shadeOf(none, true).unseen, true);
  const faint = levels({ ...shaded, weights: Float32Array.of(1e-5) }, 1, "linear");
  assert.equal(shadeOf(faint[0], true).t, null);
});

test("contributions are ranked by their size and added up with their signs", () => {
  const shaded = {
    token: 3,
    weights: Float32Array.of(-2, 0.5, 1, 0),
    from: 0,
    without: new Set(),
    top: 2,
    signed: true,
  };
  const ranking = strongest(shaded, 2);
  assert.deepEqual(
    ranking.best.map(({ token }) => token),
    [0, 2],
  );
  near(ranking.total, -0.5, 1e-6);
  const found = { tokens: ["a", "b", "c", "d"], shaded, ranking, looking: true, quantity: logit };
  assert.equal(rankingLine(found, -1, "“lit”"), "“lit” after “d” is predicted from “a” −2, “c” +1");
  const notes = rankingNotes(found).join(" ");
  assert.match(notes, /The other one token: \+0\.5 in total\. Sum over the shaded tokens: −0\.5\./);
});
