// Questions about a saved page's weights and their answers, through a channel as through a worker.

import assert from "node:assert/strict";
import { test } from "node:test";
import { deflateSync } from "node:zlib";
import { PLAIN } from "../../src/regard/show/web/data/quantity.js";
import { RemoteWeights } from "../../src/regard/show/web/source/remote_weights.js";
import { Responder } from "../../src/regard/show/web/source/arithmetic/responder.js";
import { SavedWeights } from "../../src/regard/show/web/source/arithmetic/saved_weights.js";
import { headArrays, near, planes, weightsOf } from "./helpers.js";

const TYPES = { Float32Array: ["f32", 4], Float64Array: ["f64", 8], Uint32Array: ["u32", 4] };

/** Arrays as a block's text, and the list of its fields. */
function packed(arrays) {
  const list = Object.entries(arrays).map(([name, array]) => [name, array, ...TYPES[array.constructor.name]]);
  const bytes = Buffer.concat(list.map(([, array, , size]) => planes(array, size)));
  return {
    text: deflateSync(bytes).toString("base64"),
    fields: list.map(([name, array, type]) => ({ name, type, shape: [array.length] })),
  };
}

const joined = (arrays) => Float32Array.from(arrays.flatMap((array) => [...array]));

/** A page of one layer with two heads, each with its own keys, and both ends of the channel that it asks through. */
function opened({ T = 6, D = 4, missing = "" } = {}) {
  const heads = [headArrays({ T, D, seed: 1 }), headArrays({ T, D, seed: 2 })];
  const { offsets, ranges, scale } = heads[0];
  const file = {
    "layer-0-0": packed({
      q: joined(heads.map(({ q }) => q)),
      k: joined(heads.map(({ k }) => k)),
      mean: new Float32Array(2 * D),
      lse: Float64Array.from(heads.flatMap(({ lse }) => [...lse])),
    }),
    "mask-0": packed({ offsets, ranges }),
    "values-0-0": packed({ v: new Float32Array(2 * T * 3).fill(1) }),
  };
  const layer = {
    ...{ key: "0", heads: [4, 7], kv_heads: 2, group: 1, width: D, value_width: 3, scale, softcap: null },
    ...{ rows: T, cols: T, block: "layer-0-0", mask_block: "mask-0", values_block: "values-0-0" },
  };
  const meta = {
    ...{ tile: 256, thumb: 64, scores: [], strongest: 12 },
    texts: [{ layers: [layer] }],
  };
  const blocks = Object.fromEntries(Object.entries(file).map(([name, { fields }]) => [name, fields]));
  const taken = [];
  const takeBlock = (name) => {
    if (name === missing) throw new Error(`The file holds no block "${name}".`);
    taken.push(name);
    return file[name].text;
  };
  const { port1, port2 } = new MessageChannel();
  const responder = new Responder(port2, SavedWeights);
  const weights = new RemoteWeights(port1, { meta, blocks, attributions: [[]] }, takeBlock);
  return { heads, responder, weights, taken, close: () => port1.close(), port: port1 };
}

const place = { text: 0, layer: "0", head: 7, quantity: PLAIN };
const tile = { ...place, z: 0, i: 0, j: 0 };

test("every question is answered with what its method computes", async (t) => {
  const { heads, weights, close } = opened();
  t.after(close);
  const wanted = weightsOf(heads[1]);
  const row = await weights.ask("row", { ...place, index: 3 });
  wanted[3].forEach((w, j) => near(row[j], w, 1e-6));
  const column = await weights.ask("column", { ...place, index: 2 });
  wanted.forEach((line, i) => near(column[i], line[2], 1e-6));
  const cells = await weights.ask("tile", tile);
  assert.deepEqual([cells.rows, cells.cols], [6, 6]);
  wanted.flat().forEach((w, n) => near(cells.mass[n], w, 1e-6));
  const steps = await weights.ask("steps", { ...place, row: 5 });
  assert.equal(steps.visible, 6);
  near(steps.output[0], 1, 1e-6); // a mean of ones
});

test("mean takes all heads and all layers", async (t) => {
  const { heads, weights, close } = opened();
  t.after(close);
  const [first, second] = heads.map((head) => weightsOf(head)[4]);
  const mean = await weights.ask("row", { ...place, layer: "mean", head: "mean", index: 4 });
  mean.forEach((w, j) => near(w, (first[j] + second[j]) / 2, 1e-6));
});

test("questions that are asked at once get their own answers, and a block is taken once", async (t) => {
  const { heads, weights, taken, close } = opened();
  t.after(close);
  const wanted = weightsOf(heads[1]);
  const rows = await Promise.all([5, 0, 3].map((index) => weights.ask("row", { ...place, index })));
  [5, 0, 3].forEach((index, n) => wanted[index].forEach((w, j) => near(rows[n][j], w, 1e-6)));
  assert.deepEqual(taken.sort(), ["layer-0-0", "mask-0"]);
});

test("arrays are moved and not copied, and the same question can be asked again", async (t) => {
  const { responder, weights, close } = opened();
  t.after(close);
  const sent = [];
  const post = responder.port.postMessage.bind(responder.port);
  responder.port.postMessage = (message, transfer) => {
    post(message, transfer);
    sent.push(message);
  };
  const [first, second] = [await weights.ask("tile", tile), await weights.ask("tile", tile)];
  assert.deepEqual(first, second);
  for (const { kind, answer } of sent.filter((message) => message.kind === "answer")) {
    assert.equal(kind, "answer");
    assert.equal(answer.mass.length, 0); // detached
    assert.equal(answer.max.length, 0);
  }
});

test("an error reaches the one who asked, with its sentence, and others are answered", async (t) => {
  const { weights, close } = opened();
  t.after(close);
  const wrong = weights.ask("row", { ...place, head: 5, index: 0 });
  const right = weights.ask("row", { ...place, index: 0 });
  await assert.rejects(wrong, { name: "Error", message: "Layer 0 has no head 5." });
  await assert.rejects(weights.ask("steps", { ...place, layer: "x", row: 0 }), /There is no layer x\./);
  assert.equal((await right).length, 6);
});

test("a block that the file does not hold is an error of the question", async (t) => {
  const { weights, close } = opened({ missing: "mask-0" });
  t.after(close);
  await assert.rejects(weights.ask("tile", tile), /The file holds no block "mask-0"/);
});

test("a question that is taken back is computed no further, and the next one is answered meanwhile", async (t) => {
  const { responder, weights, close } = opened({ T: 1500, D: 64 });
  t.after(close);
  await weights.ask("row", { ...place, index: 0 });
  const stop = new AbortController();
  const long = weights.ask("tile", { ...tile, z: 3 }, stop.signal);
  const row = await weights.ask("row", { ...place, index: 9 }); // comes between two parts of the tile
  assert.equal(row.length, 1500);
  assert.equal(responder.running.size, 1);
  stop.abort();
  await assert.rejects(long, { name: "AbortError" });
  const sent = [];
  const post = responder.port.postMessage.bind(responder.port);
  responder.port.postMessage = (message, transfer) => {
    sent.push(message.kind);
    post(message, transfer);
  };
  while (responder.running.size) await new Promise((go) => setTimeout(go, 1));
  assert.deepEqual(sent, []); // nothing is sent that nobody wants
  assert.equal(weights.waiting.size, 0);
});

test("a question that was taken back before it was asked is not sent", async (t) => {
  const { weights, close } = opened();
  t.after(close);
  await assert.rejects(weights.ask("tile", tile, AbortSignal.abort()), { name: "AbortError" });
  assert.equal(weights.last, 0);
});

test("if the worker dies, nobody waits for ever", async (t) => {
  const { weights, port, close } = opened();
  t.after(close);
  const row = weights.ask("row", { ...place, index: 0 });
  port.dispatchEvent(Object.assign(new Event("error"), { message: "out of memory" }));
  await assert.rejects(row, /The computation failed\. out of memory/);
});
