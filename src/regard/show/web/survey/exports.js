// @ts-check
// What the Survey view can save: the scatter with the chosen head as a figure, and all scores of every head.

import { scoreTitle } from "../data/score_words.js";
import { writeCsv } from "../picture/numbers.js";
import { viewFigure } from "../picture/figure.js";

/**
 * @param {Pick<import("./survey.js").SurveyView, "column" | "survey" | "names">} view
 * @returns {Exported}
 */
export function surveyExports(view) {
  return {
    name: () => `survey-${view.names.across}-${view.names.up}`,
    picture: async () => {
      const { across, up } = view.names;
      const heading = `${view.survey.model || "Survey"}: ${scoreTitle(across)} and ${scoreTitle(up)}`;
      return viewFigure([view.column], { heading, lines: [], notes: [], warning: "" });
    },
    numbers: { CSV: async () => surveyCsv(view.survey) },
  };
}

/** @param {Survey} survey */
export function surveyCsv({ names, heads }) {
  return writeCsv([
    ["layer", "head", "label", ...names],
    ...heads.map(({ layer, head, label, scores }) => [
      layer,
      head,
      label ?? "",
      ...names.map((name) => scores[name] ?? null),
    ]),
  ]);
}
