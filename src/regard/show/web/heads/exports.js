// @ts-check
// What the Heads view can save: its pictures and bars as a figure, and the scores of every head.

import { labelsOf } from "../parts/head_words.js";
import { writeCsv } from "../picture/numbers.js";
import { viewFigure } from "../picture/figure.js";
import { textWords } from "../picture/words.js";
import { namesOf } from "./scores.js";

/**
 * @typedef {Pick<import("./heads.js").HeadsView, "column" | "heads" | "text">} GalleryOnPaper
 */

/**
 * @param {App} app
 * @param {GalleryOnPaper} view
 * @returns {Exported}
 */
export function headsExports(app, view) {
  return {
    name: () => `heads-${app.state.text}`,
    picture: async () => viewFigure([view.column], textWords(app, "what its heads do", app.state.text)),
    numbers: { CSV: async () => headsCsv(view) },
  };
}

/** @param {GalleryOnPaper} view */
function headsCsv({ heads }) {
  const names = namesOf(heads);
  return writeCsv([
    ["layer", "head", "labels", "sentence", ...names.flatMap((name) => [name, `${name}_uniform`])],
    ...heads.map((row) => [
      row.layer,
      row.head,
      labelsOf(row).join(" "),
      row.sentence ?? "",
      ...names.flatMap((name) => [row.scores[name]?.value ?? null, row.scores[name]?.null ?? null]),
    ]),
  ]);
}
