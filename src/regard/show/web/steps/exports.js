// @ts-check
// What the Steps view can save: the computation of a row as a figure, and its numbers.

import { visible } from "../data/tokens.js";
import { writeCsv } from "../picture/numbers.js";
import { viewFigure } from "../picture/figure.js";
import { headWords } from "../picture/words.js";

/**
 * @typedef {Pick<import("./steps.js").StepsView, "state" | "row" | "found" | "page">} StepsOnPaper
 */

/**
 * @param {App} app
 * @param {StepsOnPaper} view
 * @returns {Exported}
 */
export function stepsExports(app, view) {
  return {
    name: () => {
      const { example, layer, head } = view.state;
      return example ? `example-row-${view.row}` : `layer-${layer}-head-${head}-row-${view.row}`;
    },
    picture: async () => viewFigure([view.page], await stepsWords(app, view)),
    numbers: { CSV: async () => stepsCsv(view) },
  };
}

/**
 * @param {App} app
 * @param {StepsOnPaper} view
 * @returns {Promise<FigureWords>}
 */
async function stepsWords(app, { state: { text, layer, head, example } }) {
  if (example) return { heading: "Attention, step by step", lines: [], notes: [], warning: "" };
  return { ...(await headWords(app, { text, layer, head })), notes: [] }; // the view says it itself
}

/**
 * Every key that was computed, with its numbers.
 * @param {StepsOnPaper} view
 */
function stepsCsv({ found }) {
  if (!found) throw new Error("there is no row to export yet");
  const columns = /** @type {const} */ (["score", "scaled", "capped", "added", "weight"]);
  return writeCsv([
    ["position", "token", "visible", ...columns],
    ...found.work.keys.map((key) => [
      key.key,
      visible(found.key(key.key)),
      key.visible ? 1 : 0,
      ...columns.map((name) => key[name]),
    ]),
  ]);
}
