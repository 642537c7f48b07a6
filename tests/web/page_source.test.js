// What the page asks, and which answers are kept.

import assert from "node:assert/strict";
import { test } from "node:test";
import { makeSource } from "../../src/regard/show/web/source/page_source.js";
import "./helpers.js";

/** A source, and the names of what it has asked. */
function made(answer = async () => ({ pictures: [] })) {
  const asked = [];
  const ask = (name, question, signal) => {
    asked.push([name, question]);
    return answer(signal);
  };
  return { source: makeSource({ texts: [] }, 4, ask, {}), asked };
}

test("an answer is kept, and two who want the same at a time wait for one", async () => {
  const { source, asked } = made();
  const [first, second] = await Promise.all([source.thumbs(0, "1"), source.thumbs(0, "1")]);
  assert.equal(first, second);
  assert.equal(await source.thumbs(0, "1"), first);
  await source.thumbs(0, "2");
  assert.deepEqual(asked, [
    ["thumbs", { text: 0, layer: "1" }],
    ["thumbs", { text: 0, layer: "2" }],
  ]);
});

test("an answer that failed is asked for again", async () => {
  let fails = true;
  const { source, asked } = made(async () => {
    if (fails) throw new Error("busy");
    return 7;
  });
  await assert.rejects(source.steps(0, "1", 2, 3), /busy/);
  fails = false;
  assert.equal(await source.steps(0, "1", 2, 3), 7);
  assert.equal(asked.length, 2);
});

test("who may leave has a question of their own", async () => {
  const { source, asked } = made();
  const signal = new AbortController().signal;
  const tile = () => source.tile({ text: 0, layer: "1", head: 2, z: 0, i: 0, j: 0 }, signal);
  await Promise.all([tile(), tile()]);
  await tile();
  assert.equal(asked.length, 2);
});
