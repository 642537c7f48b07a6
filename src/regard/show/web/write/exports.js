// @ts-check
// What the Write view can save: its figures, and what was measured for every generated token.

import { plainToken } from "./prompt.js";
import { writeCsv } from "../picture/numbers.js";
import { viewFigure } from "../picture/figure.js";
import { textWords } from "../picture/words.js";

/**
 * @typedef {Pick<import("./write.js").WriteView, "steps" | "figures" | "state">} WriteOnPaper
 */

/**
 * @param {App} app
 * @param {WriteOnPaper} view
 * @returns {Exported}
 */
export function writeExports(app, view) {
  return {
    name: () => "generation",
    picture: async () => {
      const words = textWords(app, "the KV cache", app.state.text);
      return viewFigure([view.figures.box], words);
    },
    numbers: { CSV: async () => writtenCsv(view) },
  };
}

/** @param {WriteOnPaper} view */
function writtenCsv({ steps }) {
  if (!steps.length) throw new Error("generate some tokens first");
  const measured = /** @type {const} */ (["seconds", "computed", "keys_read"]);
  const names = measured.flatMap((name) => [`${name}_with_cache`, `${name}_without`]);
  return writeCsv([
    ["position", "token", ...names, "cache_bytes", "logit_difference"],
    ...steps.map((step) => [
      step.position,
      plainToken(step.token),
      ...measured.flatMap((name) => [step[name].cached, step[name].recomputed]),
      step.cache_bytes,
      step.difference,
    ]),
  ]);
}
