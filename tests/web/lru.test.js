// The cache: bounded, and what was used least recently goes first.

import assert from "node:assert/strict";
import { test } from "node:test";
import { LRU } from "../../src/regard/show/web/data/lru.js";
import { numbers } from "./helpers.js";

test("what was used least recently goes first", () => {
  const cache = new LRU(2);
  cache.set("a", 1);
  cache.set("b", 2);
  assert.equal(cache.get("a"), 1); // now b is the older one
  cache.set("c", 3);
  assert.equal(cache.get("b"), undefined);
  assert.equal(cache.get("a"), 1);
  assert.equal(cache.get("c"), 3);
});

test("setting again replaces and renews", () => {
  const cache = new LRU(2);
  cache.set("a", 1);
  cache.set("b", 2);
  cache.set("a", 4);
  cache.set("c", 3);
  assert.equal(cache.get("a"), 4);
  assert.equal(cache.get("b"), undefined);
});

test("values that count as false are values", () => {
  const cache = new LRU(2);
  cache.set("zero", 0);
  cache.set("empty", "");
  assert.equal(cache.get("zero"), 0);
  assert.equal(cache.get("empty"), "");
});

test("it agrees with a plain list, over many uses", () => {
  const random = numbers(5);
  const cache = new LRU(4);
  let list = []; // [key, value], least recently used first
  for (let n = 0; n < 3000; n++) {
    const key = String(Math.floor(random() * 9));
    const known = list.find(([name]) => name === key);
    if (random() < 0.5) {
      assert.equal(cache.get(key), known?.[1]);
      if (known) list = [...list.filter((one) => one !== known), known];
    } else {
      cache.set(key, n);
      list = [...list.filter((one) => one !== known), [key, n]].slice(-4);
    }
    assert.deepEqual([...cache.entries], list);
  }
});
