// @ts-check
// What the Time view can save: its charts as a figure, and the score of every head at every step.

import { scoreTitle } from "../data/score_words.js";
import { writeCsv } from "../picture/numbers.js";
import { viewFigure } from "../picture/figure.js";

/**
 * @typedef {Pick<import("./time.js").TimeView, "column" | "run" | "name" | "scores">} TimeOnPaper
 */

/**
 * @param {App} app
 * @param {TimeOnPaper} view
 * @returns {Exported}
 */
export function timeExports(app, view) {
  return {
    name: () => `training-${view.name}`,
    picture: async () => {
      const heading = `${view.run.name || app.meta.model}: ${scoreTitle(view.name)} over training`;
      return viewFigure([view.column], { heading, lines: [], notes: [], warning: "" });
    },
    numbers: { CSV: async () => timeCsv(view) },
  };
}

/** @param {TimeOnPaper} view */
function timeCsv({ run, scores, name }) {
  const history = scores[name];
  const heads = history.heads[0].flatMap((row, layer) => row.map((_, head) => ({ layer, head })));
  return writeCsv([
    ["step", "uniform", ...heads.map(({ layer, head }) => `${layer}.${head}`)],
    ...run.steps.map((step, at) => [
      step,
      history.null[at],
      ...heads.map(({ layer, head }) => history.heads[at][layer][head]),
    ]),
  ]);
}
