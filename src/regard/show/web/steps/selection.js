// @ts-check
// Which row the Steps view explains and which of its keys it shows, as functions of the state.

import { visible } from "../data/tokens.js";

/**
 * The row that is explained: the chosen one, or one that says something.
 * @param {Pick<State, "row" | "example">} state
 * @param {number} count of rows
 * @param {number | null} telling the text's
 */
export function explainedRow({ row, example }, count, telling) {
  if (row >= 0 && row < count) return row;
  return example ? 1 : Math.min(telling ?? count - 1, count - 1);
}

/**
 * The strongest keys, with the first and the query's own, in order.
 * @param {KeySteps[]} keys
 * @param {number} strongest
 * @param {number} position
 */
export function shownKeys(keys, strongest, position) {
  if (keys.length <= strongest) return keys;
  const best = new Set([...keys].sort((a, b) => b.weight - a.weight).slice(0, strongest));
  return keys.filter((key) => best.has(key) || key.key === 0 || key.key === position);
}

/**
 * What the keys that are not shown get together.
 * @param {RowSteps} work
 * @param {KeySteps[]} shown
 */
export function hiddenWeight(work, shown) {
  return Math.max(0, work.sum - shown.reduce((sum, key) => sum + key.weight, 0));
}

/**
 * Every key that was computed, with its numbers, as a table.
 * @param {FoundSteps | null} found
 * @returns {TableRow[]}
 */
export function keyRows(found) {
  if (!found) throw new Error("there is no row to export yet");
  const columns = /** @type {const} */ (["score", "scaled", "capped", "added", "weight"]);
  return [
    ["position", "token", "visible", ...columns],
    ...found.work.keys.map((key) => [
      key.key,
      visible(found.key(key.key)),
      key.visible ? 1 : 0,
      ...columns.map((name) => key[name]),
    ]),
  ];
}

/**
 * A row of the small example. `address` is its stage and head, as in "3.1"; the first of each if there is none.
 * @param {StageExample} example
 * @param {string} address
 * @param {number} row
 * @returns {FoundSteps}
 */
export function exampleSteps({ tokens, stages }, address, row) {
  const [n, h] = address.split(".").map(Number);
  const stage = stages[n] ?? stages[0];
  const work = (stage.heads[h || 0] ?? stage.heads[0])[row];
  const sum = work.keys.reduce((total, key) => total + key.weight, 0);
  return { work, layer: null, name: tokens[row], key: (j) => tokens[j], example: stage, sum };
}

/**
 * The stages of the small example to choose from, each head on its own, as [address, text].
 * @param {StageExample} example
 */
export function stageOptions({ stages }) {
  return stages.flatMap(({ name, heads }, n) =>
    heads.map((_, h) => (heads.length > 1 ? [`${n}.${h}`, `${name}, head ${h + 1}`] : [`${n}`, name])),
  );
}
