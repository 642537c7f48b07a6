// @ts-check
// The names of the head scores, as Python lists them in `score_words.py`.

import { settings } from "./settings.js";

/** @param {string} name */
function wordsOf(name) {
  return settings.scores.find((one) => one.name === name);
}

/**
 * A score's title: "previous token" for previous_token. A score that is not in the list is called by its own name.
 * @param {string} name
 */
export function scoreTitle(name) {
  return wordsOf(name)?.title ?? name.replaceAll("_", " ");
}

/**
 * One sentence that says what a score measures; "" if the list does not say.
 * @param {string} name
 */
export function scoreAbout(name) {
  return wordsOf(name)?.about ?? "";
}

/**
 * Names of scores in the order of the list, then any others.
 * @param {string[]} names
 */
export function inListOrder(names) {
  const listed = settings.scores.map(({ name }) => name);
  return [
    ...listed.filter((name) => names.includes(name)),
    ...names.filter((name) => !listed.includes(name)),
  ];
}
