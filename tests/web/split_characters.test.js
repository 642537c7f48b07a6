// Characters that several tokens share: their marks are read, joined, and found while a text is written.

import assert from "node:assert/strict";
import { test } from "node:test";
import {
  joinTokens,
  locate,
  splitTokens,
  withToken,
} from "../../src/regard/show/web/data/split_characters.js";

test("the pieces of a character stand with the one that begins it", () => {
  const tokens = ["a", " 世¹⁄₃", "世²⁄₃", "世³⁄₃", "b"];
  assert.equal(joinTokens(tokens), "a 世b");
  assert.deepEqual(
    splitTokens(tokens).map(({ first, piece, pieces }) => [first, piece, pieces]),
    [
      [0, 0, 0],
      [1, 1, 3],
      [1, 2, 3],
      [1, 3, 3],
      [4, 0, 0],
    ],
  );
});

test("a token may end one character and begin the next", () => {
  const tokens = ["世¹⁄₂", "世²⁄₂👩¹⁄₂", "👩²⁄₂!"];
  assert.equal(joinTokens(tokens), "世👩!");
  assert.deepEqual(locate(tokens).places, [
    [0, 1],
    [0, 2],
    [1, 3],
  ]);
});

test("a fraction that the text has is no mark", () => {
  for (const tokens of [["a¹⁄₂"], ["a¹⁄₂", "b²⁄₂"], ["a²⁄₂"], ["a¹⁄₃", "a³⁄₃"], ["x¹⁄₁"], ["½"], [""]])
    assert.equal(joinTokens(tokens), tokens.join(""));
});

test("bytes become pieces once the last one has come", () => {
  const written = ["a", "<0xE4>", "<0xB8>", "世³⁄₃", "b"].reduce(
    (tokens, token) => withToken(tokens, token),
    /** @type {string[]} */ ([]),
  );
  assert.deepEqual(written, ["a", "世¹⁄₃", "世²⁄₃", "世³⁄₃", "b"]);
  assert.equal(joinTokens(written), "a世b");
});
