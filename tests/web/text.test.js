// The Text view's arithmetic: where tokens stand, what is averaged, how they are shaded and ranked.

import assert from "node:assert/strict";
import { test } from "node:test";
import { arcPath } from "../../src/regard/show/web/parts/arcs.js";
import {
  strongestEdges,
  rankingLine,
  rankingNotes,
  strongest,
} from "../../src/regard/show/web/text/ranking.js";
import { PLAIN } from "../../src/regard/show/web/data/quantity.js";
import { inRunningText } from "../../src/regard/show/web/text/layout.js";
import { axisOffsets, indexOnAxis, writtenText } from "../../src/regard/show/web/text/offsets.js";
import {
  layersInScope,
  meanOverHeads,
  scopeName,
  sinkInScope,
  weightsInScope,
  secondHead,
  secondHeadOptions,
} from "../../src/regard/show/web/text/scope.js";
import { levels, shadeOf, shadingTop } from "../../src/regard/show/web/text/shading.js";
import { near, numbers } from "./helpers.js";

const layer = (parts = {}) => ({
  key: "0",
  stack: "",
  rows: 3,
  cols: 3,
  heads: [0, 1],
  queries_of: "tokens",
  keys_of: "tokens",
  queries_from: 0,
  keys_from: 0,
  ...parts,
});
const meta = { texts: [{ tokens: ["a", "b", "c", "d"], target_tokens: ["x", "y"] }] };

test("queries and keys of one text begin where the layer says", () => {
  const written = writtenText(meta, 0, layer({ queries_from: 1 }));
  assert.deepEqual(written, { tokens: meta.texts[0].tokens, queries: 1, keys: 0 });
});

test("of two texts that of the keys is written first", () => {
  const cross = layer({ queries_of: "target_tokens", stack: "cross", rows: 2, cols: 4 });
  assert.deepEqual(writtenText(meta, 0, cross), {
    tokens: ["a", "b", "c", "d", "x", "y"],
    queries: 4,
    keys: 0,
    second: 4,
  });
});

test("tokens that are not known are numbered, with queries at the end of the keys", () => {
  const unknown = layer({ queries_from: null, keys_from: null, rows: 2, cols: 4 });
  assert.deepEqual(writtenText(meta, 0, unknown), { tokens: [" 0", " 1", " 2", " 3"], queries: 2, keys: 0 });
  const cross = writtenText(meta, 0, { ...unknown, stack: "cross" });
  assert.deepEqual([cross.tokens.length, cross.queries, cross.second], [6, 4, 4]);
});

test("a token has a place on its axis, or none", () => {
  const written = { tokens: [], queries: 5, keys: 2 };
  const at = axisOffsets(written, { rows: 3, cols: 6 }, true);
  assert.deepEqual(at, { mine: 5, size: 3, theirs: 2 });
  assert.deepEqual(
    [-1, 4, 5, 7, 8].map((token) => indexOnAxis(at, token)),
    [-1, -1, 0, 2, -1],
  );
  assert.deepEqual(axisOffsets(written, { rows: 3, cols: 6 }, false), { mine: 2, size: 6, theirs: 5 });
});

test("all layers are those of the chosen one's stack", () => {
  const layers = [layer(), layer({ key: "cross.0", stack: "cross" }), layer({ key: "1" })];
  assert.deepEqual(
    layersInScope(layers, layers[0], "all").map(({ key }) => key),
    ["0", "1"],
  );
  assert.deepEqual(layersInScope(layers, layers[0], "layer"), [layers[0]]);
  assert.equal(scopeName({ head: 1, scope: "head" }, layers[0]), "Layer 0, head 1");
  assert.equal(scopeName({ scope: "all" }, layers[1]), "The mean over all heads of all cross layers");
});

test("the mean over layers weighs each by its heads", () => {
  const mean = meanOverHeads([Float32Array.of(1, 0), Float32Array.of(0, 0.5)], [3, 1]);
  near(mean[0], 0.75, 1e-7);
  near(mean[1], 0.125, 1e-7);
});

test("a scope asks for one row, the mean, or the mean of each layer", async () => {
  const asked = [];
  const ask = async (text, key, head, index) => {
    asked.push([text, key, head, index]);
    return Float32Array.of(key === "1" ? 1 : 0);
  };
  const layers = [
    layer(),
    layer({ key: "c", stack: "cross" }),
    layer({ key: "1", heads: [0, 1, 2, 3, 4, 5] }),
  ];
  await weightsInScope(ask, { text: 0, head: 1, scope: "head" }, layers[0], layers, 7);
  await weightsInScope(ask, { text: 0, head: 1, scope: "layer" }, layers[0], layers, 7);
  await weightsInScope(ask, { text: 0, head: 1, scope: "all" }, layers[0], [layers[0], layers[2]], 7);
  assert.deepEqual(asked.splice(0), [
    [0, "0", 1, 7],
    [0, "0", "mean", 7],
    [0, "mean", "mean", 7],
  ]);
  const [mean] = await weightsInScope(ask, { text: 0, head: 1, scope: "all" }, layers[0], layers, 7);
  near(mean, 6 / 8, 1e-7);
  assert.deepEqual(asked, [
    [0, "0", "mean", 7],
    [0, "1", "mean", 7],
  ]);
});

test("the sink is the key that gets the most over the scope", async () => {
  const sinks = [
    { key: 0, share: 0.5 },
    { key: 9, share: 0.3 },
  ];
  const other = [
    { key: 9, share: 0.3 },
    { key: 4, share: 0.1 },
  ];
  const source = { thumbs: async (_, key) => ({ sinks: key === "0" ? sinks : other }) };
  const shown = [layer(), layer({ key: "1" })];
  assert.equal(await sinkInScope(source, { text: 0, head: 1, scope: "head" }, [shown[0]]), 9);
  assert.equal(await sinkInScope(source, { text: 0, head: 1, scope: "layer" }, [shown[0]]), 0);
  assert.equal(await sinkInScope(source, { text: 0, head: 1, scope: "all" }, shown), 9);
  assert.equal(await sinkInScope(source, { text: 0, head: 7, scope: "head" }, shown), null);
});

const shaded = (weights, parts = {}) => ({
  token: 3,
  weights: Float32Array.from(weights),
  from: 1,
  without: new Set(),
  top: shadingTop(Float32Array.from(weights), 1, () => true),
  ...parts,
});

test("the colours end at the greatest weight that is shaded", () => {
  assert.equal(
    shadingTop(Float32Array.of(0.5, 0.25), 1, () => true),
    0.5,
  );
  assert.equal(
    shadingTop(Float32Array.of(0.5, 0.25), 1, (token) => token !== 1),
    0.25,
  );
  assert.equal(
    shadingTop(new Float32Array(4), 0, () => true),
    1,
  );
});

test("tokens are plain, unseen, or of a shade that grows with their weight", () => {
  assert.deepEqual([...levels(null, 3, "linear")], [0, 0, 0]);
  const all = levels(shaded([0.5, 0.25, 0, 0.125]), 6, "linear");
  assert.equal(all[0], 1); // before the first weight
  assert.equal(all[1], 66);
  assert.ok(all[2] < all[1] && all[4] < all[2]);
  assert.equal(all[3], 0); // the chosen token itself gets nothing, which is not marked
  assert.equal(all[5], 1);
  assert.equal(levels(shaded([0.5, 0.25], { without: new Set([1]) }), 3, "linear")[1], 0);
  assert.deepEqual(shadeOf(1), { t: null, unseen: true });
  assert.deepEqual(shadeOf(0), { t: null, unseen: false });
  assert.deepEqual(shadeOf(66), { t: 1, unseen: false });
});

test("a log scale shades small weights more", () => {
  const weights = [1, 0.01];
  assert.ok(levels(shaded(weights), 3, "log")[2] > levels(shaded(weights), 3, "linear")[2]);
});

test("the strongest are those that a sort would give", () => {
  const random = numbers(8);
  for (let n = 0; n < 50; n++) {
    const weights = Float32Array.from({ length: 40 }, () => (random() < 0.3 ? 0 : random()));
    const { best, total, seen } = strongest({ weights, from: 2, without: new Set([7]) }, 5);
    const kept = [...weights.entries()].filter(([i, w]) => w > 0 && i + 2 !== 7);
    assert.deepEqual(
      best.map(({ w }) => w),
      kept
        .map(([, w]) => w)
        .sort((a, b) => b - a)
        .slice(0, 5),
    );
    assert.ok(best.every(({ token, w }) => weights[token - 2] === w));
    assert.equal(seen, kept.length);
    near(
      total,
      kept.reduce((sum, [, w]) => sum + w, 0),
      1e-6,
    );
  }
});

const found = (shaded, ranking, looking) => ({
  ...{ shaded, ranking, looking, quantity: PLAIN },
  tokens: ["a", "b", "c", "d"],
});

test("one line says what a token does, or its weight with another", () => {
  const row = shaded([0.75, 0.25]);
  const ranking = strongest(row, 12);
  assert.equal(rankingLine(found(row, ranking, true), -1), "“d” attends to “b” 75%, “c” 25%");
  assert.equal(rankingLine(found(row, ranking, false), 2), "“d” is attended to by “c”: 25%");
  const none = shaded([0, 0]);
  assert.equal(rankingLine(found(none, strongest(none, 12), true), -1), "“d” attends to nothing");
});

test("notes count what the list leaves out", () => {
  const row = shaded([0.5, 0.25, 0.125], { without: new Set([1]) });
  const notes = rankingNotes(found(row, strongest(row, 1), true)).join(" ");
  assert.match(notes, /token 1, with 50%\./);
  assert.match(notes, /The other one token: 13% in total\./);
  assert.equal(rankingNotes(found(row, strongest(row, 3), false)).length, 2);
});

test("line ends stay in running text, but for the last", () => {
  assert.equal(inRunningText("a\n\n"), "a↵\n↵");
  assert.equal(inRunningText("\n"), "↵");
  assert.equal(inRunningText(" the  b"), " the  b");
  assert.equal(inRunningText(""), "∅");
});

test("of a token that is too long both ends are written", () => {
  const written = inRunningText(`${"x".repeat(9_000)} the end`);
  assert.ok(written.length < 500);
  assert.match(written, /^x+ … x+ the end$/);
});

test("arcs lead to the strongest tokens, but not to the token itself", () => {
  const row = shaded([0.5, 0.3, 0.01, 0.19]);
  const edges = strongestEdges(strongest(row, 12), { token: row.token, top: 0.5 });
  assert.deepEqual(
    edges.map(({ token }) => token),
    [1, 2, 4].filter((token) => token !== row.token),
  );
  near(edges[1].strength, 0.6, 1e-6);
});

test("an arc within a line goes over or under it, and from line to line between them", () => {
  const at = (left, top) => ({ left, right: left + 10, top, bottom: top + 20 });
  assert.deepEqual(arcPath(at(100, 50), at(0, 50), false).end, [5, 50]);
  assert.deepEqual(arcPath(at(100, 50), at(0, 50), true).end, [5, 70]);
  assert.deepEqual(arcPath(at(100, 50), at(0, 0), false).end, [5, 20]);
  assert.deepEqual(arcPath(at(100, 50), at(0, 90), true).end, [5, 90]);
});

test("a second head is another one of a layer that reads the same", () => {
  const layers = [layer(), layer({ key: "1" }), layer({ key: "2", rows: 9 })];
  const state = { secondHead: "1/1", head: 0, scope: "head" };
  assert.equal(secondHead(state, layers, layers[0])?.head, 1);
  for (const address of ["", "0/0", "2/0", "1/7", "1/", "x/y", "1"])
    assert.equal(secondHead({ ...state, secondHead: address }, layers, layers[0]), null);
  assert.equal(secondHead({ ...state, scope: "all" }, layers, layers[0]), null);
  assert.deepEqual(
    secondHeadOptions(layers, layers[0], 0).map(([address]) => address),
    ["", "0/1", "1/0", "1/1"],
  );
});
