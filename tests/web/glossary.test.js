// The page's glossary says what the glossary of the documentation says, and every control has its words.

import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { test } from "node:test";
import { choiceWords, CONTROL_WORDS } from "../../src/regard/show/web/parts/control_words.js";
import { GLOSSARY } from "../../src/regard/show/web/parts/glossary_words.js";

const WEB = new URL("../../src/regard/show/web/", import.meta.url);
const DOCS = readFileSync(new URL("../../docs/glossary.md", import.meta.url), "utf8");

/** The text of an entry without marks. */
const plain = (text) =>
  text
    .replace(/\[([^\]]+)\]\([^)]*\)/g, "$1")
    .replace(/[*`]/g, "")
    .replace(/\s+/g, " ");

test("every word begins as its entry in the documentation does", () => {
  const docs = plain(DOCS);
  for (const [word, text] of Object.entries(GLOSSARY)) assert.ok(docs.includes(`${word}. ${text}`), word);
});

test("every control has a hint, by its name or its label", () => {
  const files = readdirSync(WEB, { recursive: true }).filter((name) => name.endsWith(".js"));
  const sources = files.map((name) => readFileSync(new URL(name, WEB), "utf8"));
  const labels = sources.flatMap((text) => [...text.matchAll(/\b(?:select|slider)\(\s*"([^"]+)"/g)]);
  assert.ok(labels.length > 10);
  for (const [, label] of labels) assert.ok(CONTROL_WORDS[label], label);
  const choices = sources.flatMap((text) => [
    ...text.matchAll(
      /= choice\(([\s\S]*?)\);\n|: choice\(([\s\S]*?)\),\n {4}\w+: |: choice\(([\s\S]*?)\),\n {2}}/g,
    ),
  ]);
  assert.ok(choices.length > 8);
  for (const made of choices.map((found) => found.slice(1).find(Boolean))) {
    const name = made.match(/^\s*[^,]+,\s*[`"]([^`"]+)[`"]/)?.[1] ?? "";
    assert.ok(choiceWords(name.replace("${view}", "view")), made);
  }
});

test("no hint is for a control that is gone", () => {
  const files = readdirSync(WEB, { recursive: true }).filter((name) => name.endsWith(".js"));
  const text = files
    .filter((name) => !name.endsWith("control_words.js"))
    .map((name) => readFileSync(new URL(name, WEB), "utf8"))
    .join("");
  for (const name of Object.keys(CONTROL_WORDS)) {
    const inAnyView = `-${name.replace(/^\w+-/, "")}`; // as in `${view}-scale`
    assert.ok(text.includes(`"${name}"`) || text.includes(inAnyView), name);
  }
});
