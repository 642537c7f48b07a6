// @ts-check
// The glossary: what a control does, and the words of the field. It is part of the page, so that it opens offline.

import { element, makeButton, termList } from "./dom.js";
import { GLOSSARY } from "./glossary_words.js";
import { settings } from "../data/settings.js";
import { walk } from "./walk.js";

/** @type {HTMLDialogElement | null} */
let dialog = null;

/**
 * Opens the glossary; above the words, what one control does.
 * @param {string} [label] of the control, or a word
 */
export function openGlossary(label = "", hint = GLOSSARY[label] ?? "") {
  dialog ??= makeDialog();
  const own = label ? [element("section.glossary-own", element("h3", label), element("p", hint))] : [];
  dialog.querySelector(".glossary-body")?.replaceChildren(
    ...own,
    ...startHere(),
    ...wordList("Words", Object.entries(GLOSSARY)),
    ...wordList(
      "Scores of heads",
      settings.scores.map(({ title, about }) => [title, about]),
    ),
  );
  dialog.showModal();
  dialog.scrollTop = 0;
}

function makeDialog() {
  const close = makeButton("Close", () => made.close());
  const head = element("div.glossary-head", element("h2", "Glossary"), close);
  const body = element("div.glossary-body");
  const made = element("dialog.glossary", { "aria-label": "Glossary" }, head, body);
  made.addEventListener("click", (event) => event.target === made && made.close()); // beside it
  document.body.append(made);
  return made;
}

/** What the page shows in three sentences, and the things to see. */
function startHere() {
  const text =
    "A language model reads a text token by token. At every token, each of its heads takes something from earlier tokens: " +
    "how much from which is its attention. This page shows these weights, as the model used them.";
  const show = makeButton("Show me five things", () => {
    dialog?.close();
    walk();
  });
  return [element("h3", "Start here"), element("p", text), show];
}

/**
 * @param {string} title
 * @param {[string, string][]} words
 */
function wordList(title, words) {
  return [element("h3", title), element("dl.glossary-words", ...termList(words))];
}
