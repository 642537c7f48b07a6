// Edited runs: cuts as data and in words, and what a text's runs are called.

import assert from "node:assert/strict";
import { test } from "node:test";
import { lossWords } from "../../src/regard/show/web/runs/banner.js";
import { cutsCell, cutWords, runName, sameCut, toggled } from "../../src/regard/show/web/runs/cuts.js";
import { EditedRuns } from "../../src/regard/show/web/runs/edited_runs.js";
import "./helpers.js";

const head = { kind: "head", layer: "5", head: 3 };
const edge = { kind: "edges", layer: "5", head: 3, queries: [7, 8], keys: [2, 3] };
const layer = {
  key: "5",
  rows: 10,
  cols: 10,
  queries_of: "tokens",
  keys_of: "tokens",
  queries_from: 0,
  keys_from: 0,
};
const tokens = [..." abcdefghi"];
const name = (axis, index) => tokens[index];

test("cuts are the same if all that they name is", () => {
  assert.ok(sameCut(head, { ...head }));
  assert.ok(sameCut(edge, structuredClone(edge)));
  assert.ok(!sameCut(head, edge));
  assert.ok(!sameCut(head, { ...head, head: 2 }));
  assert.ok(!sameCut(edge, { ...edge, keys: [2, 4] }));
  assert.ok(!sameCut(edge, { ...edge, head: null }));
});

test("a cut is made, and the same cut undone", () => {
  assert.deepEqual(toggled([], head), [head]);
  assert.deepEqual(toggled([head], edge), [head, edge]);
  assert.deepEqual(toggled([head, edge], structuredClone(edge)), [head]);
});

test("a cut says what is cut", () => {
  const words = (cut) => cutWords(cut, layer, name);
  assert.equal(words(head), "head 5.3 cut");
  assert.equal(words(edge), "head 5.3: “g” (7) cannot attend to “b” (2)");
  assert.equal(words({ ...edge, queries: [0, 10] }), "head 5.3: no token can attend to “b” (2)");
  assert.equal(words({ ...edge, keys: [0, 10] }), "head 5.3: “g” (7) cannot attend to any token");
  assert.equal(
    words({ ...edge, queries: [0, 10], keys: [0, 10] }),
    "head 5.3: no token can attend to any token",
  );
  assert.equal(
    words({ ...edge, head: null, queries: [4, 8], keys: [0, 3] }),
    "layer 5: tokens 4–7 cannot attend to tokens 0–2",
  );
  assert.equal(words({ ...edge, keys: [0, 1] }), "head 5.3: “g” (7) cannot attend to “·” (0)");
});

test("edges are cut where their spans meet a cell of their head", () => {
  const cell = (row, col, size = 1) => ({ row, col, size });
  assert.ok(cutsCell(edge, "5", 3, cell(7, 2)));
  assert.ok(cutsCell(edge, "5", 3, cell(4, 0, 4)));
  assert.ok(cutsCell({ ...edge, head: null }, "5", 0, cell(7, 2)));
  assert.ok(!cutsCell(edge, "5", 0, cell(7, 2)));
  assert.ok(!cutsCell(edge, "4", 3, cell(7, 2)));
  assert.ok(!cutsCell(edge, "5", 3, cell(8, 2)));
  assert.ok(!cutsCell(edge, "5", 3, cell(7, 3)));
  assert.ok(!cutsCell(head, "5", 3, cell(7, 2)));
});

test("a run is named by its first cuts", () => {
  assert.equal(runName(["head 5.3 cut"]), "Edited run: head 5.3 cut");
  assert.equal(runName(["a", "b", "c", "d"]), "Edited run: a; b, and 2 more cuts");
});

test("the loss is said before and after, with a sign", () => {
  assert.equal(lossWords({ before: 2.5, after: 3.25, most: [] }), "loss 2.500 → 3.250 (+0.750)");
  assert.equal(lossWords({ before: 3, after: 2.5, most: [] }), "loss 3.000 → 2.500 (−0.500)");
  assert.equal(lossWords({ before: 3, after: 3.0012, most: [] }), "loss 3.000 → 3.001 (+0.0012)");
  assert.equal(lossWords({ before: null, after: 2, most: [] }), "");
});

/** An app with two texts, the first with an edited run; `asked` lists what the source was asked. */
function makeApp() {
  const text = (title, parts = {}) => ({
    title,
    tokens,
    layers: [layer],
    edited: null,
    removed: false,
    ...parts,
  });
  const app = {
    meta: {
      can: { cut: true },
      texts: [
        text("one"),
        text("two"),
        text("gone", { removed: true }),
        text("one", { edited: { text: 0, cuts: [head], changes: null } }),
      ],
    },
    state: { text: 0 },
    set: (changes) => Object.assign(app.state, changes),
    on() {},
    asked: [],
    source: {
      async cut(number, cuts, onLine) {
        app.asked.push(["cut", number, cuts]);
        onLine({ progress: { doing: "reading", done: 1, of: 6 } });
        return 3;
      },
      remove: async (number) => app.asked.push(["remove", number]),
    },
  };
  return app;
}

globalThis.dispatchEvent ??= () => true;

test("texts are listed each with its edited run, and what is gone is not", () => {
  assert.deepEqual(new EditedRuns(makeApp()).titles(), [
    { number: 0, title: "one" },
    { number: 3, title: "↳ Edited run: head 5.3 cut" },
    { number: 1, title: "two" },
  ]);
});

test("a capture that was edited elsewhere is named so, in the library's words", () => {
  const app = makeApp();
  app.meta.texts.splice(1);
  app.meta.texts[0].edited = { text: null, cuts: [], edits: ["head 5.3 set to zero"], changes: null };
  const runs = new EditedRuns(app);
  assert.deepEqual(runs.titles(), [{ number: 0, title: "one (edited run)" }]);
  assert.equal(runs.name(0), "Edited run: head 5.3 set to zero");
  assert.deepEqual([runs.original, runs.number, runs.cuts], [0, -1, []]);
});

test("from the model's own run a cut begins anew; in the edited one it adds to the others", async () => {
  const app = makeApp();
  const runs = new EditedRuns(app);
  assert.equal(runs.has(head), false);
  await runs.toggle(edge);
  assert.deepEqual(app.asked, [["cut", 0, [edge]]]);
  assert.equal(app.state.text, 3);
  assert.equal(runs.has(head), true);
  await runs.toggle(edge);
  assert.deepEqual(app.asked[1], ["cut", 0, [head, edge]]);
});

test("undoing the last cut shows the model's own run and removes the edited one", async () => {
  const app = makeApp();
  app.state.text = 3;
  await new EditedRuns(app).toggle(head);
  assert.equal(app.state.text, 0);
  assert.deepEqual(app.asked, [["remove", 3]]);
});

test("progress and problems are told, and a second run waits for the first", async () => {
  const app = makeApp();
  const runs = new EditedRuns(app);
  const told = [];
  runs.on(() => told.push(runs.problem || runs.doing));
  app.source.cut = async (number, cuts, onLine) => {
    onLine({ progress: { doing: "reading", done: 1, of: 6 } });
    await runs.toggle(edge); // does nothing while one runs
    throw new Error("no attention call was edited");
  };
  await runs.toggle(head);
  assert.deepEqual(told, ["starting the model…", "layer 1 of 6", "no attention call was edited"]);
  assert.equal(runs.running, null);
});
