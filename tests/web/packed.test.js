// Blocks of a saved file back into arrays: byte planes of every type, and a block that is cut short.

import assert from "node:assert/strict";
import { test } from "node:test";
import { unpack } from "../../src/regard/show/web/source/arithmetic/packed.js";
import { numbers, planes } from "./helpers.js";

/** One array, there and back. */
function read(type, bytes, shape) {
  return unpack("block", bytes, [{ name: "x", type, shape }]).x;
}

test("bytes stay as they are", () => {
  assert.deepEqual(read("u8", Uint8Array.of(0, 1, 255), [3]), Uint8Array.of(0, 1, 255));
});

test("whole numbers of 32 bits", () => {
  const x = Uint32Array.of(0, 1, 256, 0x12345678, 0xffffffff);
  assert.deepEqual(read("u32", planes(x, 4), [5]), x);
});

test("whole numbers of 16 bits, with their signs, become floats", () => {
  const x = Int16Array.of(0, 1, -1, 300, -32767, 32767);
  const stored = x.map((number) => number + 128); // around 0, small ones have a high byte of 0
  assert.deepEqual(read("i16", planes(stored, 2), [2, 3]), Float32Array.from(x));
});

test("every finite float16, worked out from its bits", () => {
  const bits = Uint16Array.from({ length: 1 << 16 }, (_, n) => n);
  const x = read("f16", planes(bits, 2), [1 << 16]);
  assert.equal(x[0x3c00], 1);
  assert.equal(x[0xc000], -2);
  assert.equal(x[0x3555], 0.333251953125); // the nearest to a third
  assert.equal(x[0x7bff], 65504);
  assert.equal(x[0x0001], 2 ** -24);
  assert.ok(Object.is(x[0x8000], -0));
  assert.equal(x[0x7c00], Infinity);
  assert.equal(x[0xfc00], -Infinity);
  assert.ok(Number.isNaN(x[0x7e00]));
  for (let n = 1; n < 0x7c00; n++) assert.ok(x[n] > x[n - 1] && x[n + 0x8000] === -x[n]);
});

test("floats of 32 and 64 bits come back to the bit", () => {
  const random = numbers(7);
  const wide = Float64Array.from({ length: 500 }, () => (random() - 0.5) * 10 ** (random() * 20 - 10));
  wide.set([0, -0, Infinity, -Infinity, NaN]);
  assert.deepEqual(read("f64", planes(wide, 8), [500]), wide);
  const narrow = Float32Array.from(wide);
  assert.deepEqual(read("f32", planes(narrow, 4), [20, 25]), narrow);
});

test("a float of 24 bits lacks its last byte and nothing else", () => {
  const x = Float32Array.of(1, -2.5, 0.1);
  const words = new Uint32Array(x.buffer);
  const found = read("f24", planes(x, 4, 1), [3]);
  assert.deepEqual(
    new Uint32Array(found.buffer),
    words.map((word) => word & 0xffffff00),
  );
  assert.equal(found[0], 1);
  assert.equal(found[1], -2.5);
});

test("arrays stand one after another, each with its name", () => {
  const fields = [
    { name: "a", type: "u8", shape: [2] },
    { name: "none", type: "f64", shape: [3, 0] },
    { name: "b", type: "f32", shape: [1] },
  ];
  const found = unpack("block", Uint8Array.of(7, 8, ...planes(Float32Array.of(0.5), 4)), fields);
  assert.deepEqual(Object.keys(found), ["a", "none", "b"]);
  assert.deepEqual([...found.a], [7, 8]);
  assert.equal(found.none.length, 0);
  assert.equal(found.b[0], 0.5);
});

test("a block that is cut short or too long is refused by name", () => {
  const fields = [{ name: "x", type: "u8", shape: [2] }];
  assert.throws(
    () => unpack("layer-0-3", Uint8Array.of(1, 2, 3), fields),
    /"layer-0-3" is 3 bytes long, expected 2/,
  );
  assert.throws(() => unpack("layer-0-3", Uint8Array.of(1), fields), /expected 2/);
});
