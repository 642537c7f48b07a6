// Tokens and numbers as a reader sees them.

import assert from "node:assert/strict";
import { test } from "node:test";
import { bytes, exact, number, some } from "../../src/regard/show/web/data/format.js";
import { settings } from "../../src/regard/show/web/data/settings.js";
import {
  axisOf,
  directionOf,
  isolated,
  short,
  tokenAt,
  visible,
} from "../../src/regard/show/web/data/tokens.js";
import { numbers } from "./helpers.js";

test("spaces and line ends get a sign, other invisible characters their name or number", () => {
  settings.invisible = { "\u200b": "ZWSP", "\u200d": "ZWJ", "\u202e": "RLO" };
  assert.equal(visible(" a\n"), "·a↵");
  assert.equal(visible("\t\r\u00a0"), "⇥␍⍽");
  assert.equal(visible(""), "∅");
  assert.equal(visible("\u200b"), "⟨ZWSP⟩");
  assert.equal(visible("a\u202eb"), "a⟨RLO⟩b"); // would turn the line around
  assert.equal(visible("\ud83d"), "⟨U+D83D⟩"); // half of a character
  assert.equal(visible("\x00\x1b\x7f"), "␀␛␡");
  assert.equal(visible("a\u200db"), "a⟨ZWJ⟩b");
  assert.equal(visible("👩\u200d👩\u200d👧 ☺\ufe0f"), "👩\u200d👩\u200d👧·☺\ufe0f"); // pictures stay whole
  assert.equal(visible("é😀<b>&"), "é😀<b>&");
});

test("nothing invisible is left in any character", () => {
  for (let code = 0; code < 0x3000; code++) {
    assert.doesNotMatch(visible(String.fromCodePoint(code)), /[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Zl}\p{Zp} ]/u);
  }
});

test("a long token keeps its two ends", () => {
  assert.equal(short("abc"), "abc");
  assert.equal(short("abcdefghij", 7), "abcd…ij");
  assert.equal(short("abcdefghij", 3), "ab…");
  const random = numbers(6);
  for (let n = 0; n < 500; n++) {
    const token = Array.from({ length: Math.floor(random() * 600) }, () =>
      String.fromCodePoint(32 + Math.floor(random() * 0x1f600)),
    ).join("");
    const most = 3 + Math.floor(random() * 20);
    assert.ok([...short(token, most)].length <= most);
  }
});

const layer = (parts) => ({
  queries_of: "tokens",
  keys_of: "tokens",
  queries_from: 0,
  keys_from: 0,
  ...parts,
});

test("an axis begins where its layer does", () => {
  const meta = { texts: [{ tokens: ["a", "b", "c"], target_tokens: ["x", "y"] }] };
  assert.equal(tokenAt(axisOf(meta, 0, layer({ queries_from: 1 }), "queries"), 1), "c");
  assert.equal(tokenAt(axisOf(meta, 0, layer({ queries_of: "target_tokens" }), "queries"), 1), "y");
  assert.equal(tokenAt(axisOf(meta, 0, layer({ queries_of: "target_tokens" }), "keys"), 1), "b");
  assert.equal(axisOf(meta, 0, layer({ keys_from: null }), "keys").tokens, null);
  assert.equal(tokenAt(axisOf(meta, 0, layer({ keys_from: null }), "keys"), 7), "#7");
});

test("weights keep four digits that count", () => {
  assert.equal(exact(0), "0");
  assert.equal(exact(1 / 3), "0.3333");
  assert.equal(exact(0.00012345), "0.0001234");
  assert.equal(exact(0.000012345), "≈0");
});

test("numbers have a real minus sign, and nothing has a minus before zero", () => {
  assert.equal(number(-1.5), "−1.500");
  assert.equal(number(-0), "0.000");
  assert.equal(number(-Infinity), "−∞");
  assert.equal(number(0.0001), "≈0");
  assert.equal(number(undefined), "–");
});

test("sizes and counts", () => {
  assert.equal(bytes(0), "0 bytes");
  assert.equal(bytes(1023), "1023 bytes");
  assert.equal(bytes(1536), "1.5 KiB");
  assert.equal(bytes(200 * 1024 ** 2), "200 MiB");
  assert.equal(bytes(5000 * 1024 ** 3), "5000 GiB");
  assert.equal(some(1, "head"), "one head");
  assert.equal(some(1234, "head"), "1,234 heads");
});

test("tokens are read in the direction of their first letter", () => {
  assert.equal(directionOf(["<|endoftext|>", "1. ", "مرحبا", " hello"]), "rtl");
  assert.equal(directionOf(["hello", " مرحبا"]), "ltr");
  assert.equal(directionOf(["世", "。"]), "ltr");
  assert.equal(directionOf([]), "ltr");
  assert.equal(isolated("مر"), "\u2068مر\u2069");
  assert.equal(isolated("abc"), "abc");
});
