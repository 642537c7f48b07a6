// @ts-check
// What the Compare view saves: its maps side by side.

import { viewFigure } from "../picture/figure.js";
import { headWords } from "../picture/words.js";
import { complete } from "../map/figure.js";

/**
 * @param {import("./compare.js").CompareView} view
 * @returns {Promise<Picture>}
 */
export async function compareFigure({ app, shown, pair, row }) {
  for (const { map } of shown) if (map) await complete(map);
  const words = await Promise.all(pair.map((place) => headWords(app, place)));
  const named = words.map((own, n) => ({ ...own, name: "AB"[n] }));
  return viewFigure([row], {
    heading: named.map(({ name, heading }) => `${name}: ${heading}`).join("; "),
    lines: named.map(({ name, lines }) => `${name}: ${lines[0]}`), // what the heads do stands over their maps
    notes: ["A and B share one scale of colours."],
    warning: named.flatMap(({ warning }) => warning || []).join(" "),
  });
}
