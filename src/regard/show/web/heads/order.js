// @ts-check
// Which heads the gallery shows, and in which order. It knows scores and labels, not cards.

import { known } from "../data/arrays.js";
import { labelsOf } from "../parts/head_words.js";
import { scoreTitle } from "../data/score_words.js";

/**
 * A name for a head of a text.
 * @param {Pick<HeadScores, "layer" | "head">} head
 */
export function headName({ layer, head }) {
  return `${layer}/${head}`;
}

/**
 * The score that the matrix shows: the chosen one, or the first that says what a head finds.
 * @param {string} chosen
 * @param {string[]} names of the scores that there are
 */
export function matrixScore(chosen, names) {
  if (names.includes(chosen)) return chosen;
  return ["induction", "previous_token", "sink"].find((name) => names.includes(name)) ?? names[0] ?? "";
}

/**
 * The head with the highest score; undefined if none has it.
 * @param {HeadScores[]} heads
 * @param {string} name
 */
export function highestRow(heads, name) {
  const first = sortHeads(heads, name)[0];
  return known(first?.scores[name]?.value) ? first : undefined;
}

/**
 * The heads of the chosen layer with the chosen label.
 * @param {HeadScores[]} heads
 * @param {Pick<State, "label" | "layerFilter">} choice
 */
export function filterHeads(heads, { label, layerFilter }) {
  const fits = (/** @type {string[]} */ labels) =>
    label === "any" || (label === "none" ? labels.length === 0 : labels.includes(label));
  return heads.filter(
    (head) => (layerFilter === "all" || head.layer === layerFilter) && fits(labelsOf(head)),
  );
}

/**
 * The heads that have a label, then the others, each by a score.
 * @param {HeadScores[]} heads
 * @param {string} name
 */
export function labelledFirst(heads, name) {
  const isLabelled = (/** @type {HeadScores} */ head) => Number(labelsOf(head).length > 0);
  return sortHeads(heads, name).toSorted((a, b) => isLabelled(b) - isLabelled(a));
}

/**
 * The heads by a score, the highest first, those without it last.
 * @param {HeadScores[]} heads
 * @param {string} name
 */
export function sortHeads(heads, name) {
  const value = (/** @type {HeadScores} */ head) => head.scores[name]?.value ?? null;
  return heads.toSorted((a, b) => {
    const [x, y] = [value(a), value(b)];
    if (x === null || y === null) return Number(x === null) - Number(y === null);
    return y - x;
  });
}

/**
 * The labels to choose from, with how many heads have each, as [value, text].
 * @param {HeadScores[]} heads
 * @returns {[string, string][]}
 */
export function labelOptions(heads) {
  const all = [...new Set(heads.flatMap(labelsOf))].sort();
  const count = (/** @type {string} */ label) => filterHeads(heads, { label, layerFilter: "all" }).length;
  return [
    ["any", "any"],
    .../** @type {[string, string][]} */ (
      all.map((label) => [label, `${scoreTitle(label)} (${count(label)})`])
    ),
    ["none", `no label (${count("none")})`],
  ];
}

/**
 * The place that a key goes to in a gallery of `size` cards, `wide` in a row; null for other keys.
 * @param {string} key
 * @param {number} at
 * @param {number} wide
 * @param {number} size
 */
export function galleryTarget(key, at, wide, size) {
  /** @type {Record<string, number>} */
  const places = {
    ArrowRight: at + 1,
    ArrowLeft: at - 1,
    ArrowDown: at + wide,
    ArrowUp: at - wide,
    Home: 0,
    End: size - 1,
  };
  if (!Object.hasOwn(places, key)) return null;
  return Math.min(size - 1, Math.max(0, places[key]));
}
