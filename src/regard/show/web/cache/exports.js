// @ts-check
// What the Cache view can save: its figures, and what was measured for every generated token.

import { plainToken } from "./prompt.js";
import { writeCsv } from "../picture/numbers.js";
import { viewFigure } from "../picture/figure.js";
import { textWords } from "../picture/words.js";

/**
 * @typedef {Pick<import("./cache.js").CacheView, "steps" | "figures" | "policy" | "state">} CacheOnPaper
 */

/**
 * @param {App} app
 * @param {CacheOnPaper} view
 * @returns {Exported}
 */
export function cacheExports(app, view) {
  return {
    name: () => "cache",
    picture: async () => {
      const words = textWords(app, "the KV cache", app.state.text);
      return viewFigure([view.figures.box, view.policy.box], words);
    },
    numbers: { CSV: async () => cacheCsv(view) },
  };
}

/** @param {CacheOnPaper} view */
function cacheCsv({ steps }) {
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
