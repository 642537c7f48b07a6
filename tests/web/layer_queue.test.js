// Something of every layer: nearest to the chosen one first, a few at a time, until it is stopped.

import assert from "node:assert/strict";
import { test } from "node:test";

import { LayerQueue, nearestLayer } from "../../src/regard/show/web/data/layer_queue.js";
import { timeLeft } from "../../src/regard/show/web/parts/progress_panel.js";

const LAYERS = ["0", "1", "2", "3", "4", "5"];

/** A queue whose answers come when the test says so. */
function held() {
  /** @type {string[]} */
  const asked = [];
  /** @type {Map<string, () => void>} */
  const answers = new Map();
  /** @type {object[]} */
  const told = [];
  const queue = new LayerQueue(
    (layer) => {
      asked.push(layer);
      return new Promise((resolve) => answers.set(layer, resolve));
    },
    ({ done, layers, stopped }) => told.push({ done, of: layers.length, stopped }),
  );
  const answer = async (/** @type {string} */ layer) => {
    answers.get(layer)?.();
    await new Promise((resolve) => setTimeout(resolve));
  };
  return { queue, asked, told, answer };
}

test("the nearest layer to the chosen one comes first, the later of two", () => {
  assert.equal(nearestLayer(LAYERS, new Set(LAYERS), "3"), "3");
  assert.equal(nearestLayer(LAYERS, new Set(["0", "2", "4"]), "3"), "4");
  assert.equal(nearestLayer(LAYERS, new Set(["0"]), "no such layer"), "0");
  assert.equal(nearestLayer(LAYERS, new Set(), "3"), undefined);
});

test("two layers are asked for at a time, and another choice changes what comes next", async () => {
  const { queue, asked, told, answer } = held();
  queue.start(LAYERS, "3");
  assert.deepEqual(asked, ["3", "4"]);
  queue.chosen = "0";
  await answer("3");
  assert.deepEqual(asked, ["3", "4", "0"]);
  assert.deepEqual(told.at(-1), { done: 1, of: 6, stopped: false });
});

test("a stopped queue asks for nothing more until it goes on", async () => {
  const { queue, asked, told, answer } = held();
  queue.start(LAYERS, "0");
  queue.stop();
  await answer("0");
  assert.deepEqual(asked, ["0", "1"]);
  assert.deepEqual(told.at(-1), { done: 1, of: 6, stopped: true });
  queue.resume();
  assert.deepEqual(asked, ["0", "1", "2"]);
  for (const layer of LAYERS.slice(1)) await answer(layer);
  assert.deepEqual(told.at(-1), { done: 6, of: 6, stopped: false });
});

test("answers to an earlier list do not count", async () => {
  const { queue, asked, told, answer } = held();
  queue.start(LAYERS, "5");
  queue.start(["a"], "a");
  await answer("5");
  assert.deepEqual(told.at(-1), { done: 0, of: 1, stopped: false });
  await answer("a");
  assert.deepEqual(told.at(-1), { done: 1, of: 1, stopped: false });
  assert.deepEqual(asked, ["5", "4", "a"]);
});

test("the time that is left is said once it can be estimated and is worth it", () => {
  assert.equal(timeLeft(10, 0.01), "");
  assert.equal(timeLeft(10, 0.5), "about 10 s left");
  assert.equal(timeLeft(1, 0.5), "");
  assert.equal(timeLeft(100, 0.25), "about 5 min left");
  assert.equal(timeLeft(100, 1), "");
});
