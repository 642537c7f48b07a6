// @ts-check
// What the Cache view can save: its figures, and the share of every head by policy and budget.

import { writeCsv } from "../picture/numbers.js";
import { viewFigure } from "../picture/figure.js";
import { textWords } from "../picture/words.js";

/**
 * @typedef {Pick<import("./cache.js").CacheView, "column" | "tables" | "text">} CacheOnPaper
 */

/**
 * @param {App} app
 * @param {CacheOnPaper} view
 * @returns {Exported}
 */
export function retentionExports(app, view) {
  return {
    name: () => "cache",
    picture: async () => viewFigure([view.column], textWords(app, "what a cache keeps", app.state.text)),
    numbers: { CSV: async () => retentionCsv(app, view) },
  };
}

/**
 * @param {App} app
 * @param {CacheOnPaper} view
 */
function retentionCsv({ meta }, { tables, text }) {
  const rows = meta.texts[text].layers.flatMap(({ key, heads }, y) => {
    const table = tables[y];
    if (!table?.budgets) return [];
    return table.policies.flatMap((policy, p) =>
      table.budgets.flatMap((budget, b) =>
        heads.map((head, x) => [key, head, policy, budget, table.shares[p][b][x] ?? 1]),
      ),
    );
  });
  return writeCsv([["layer", "head", "policy", "budget", "share"], ...rows]);
}
