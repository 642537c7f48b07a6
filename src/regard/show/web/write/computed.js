// @ts-check
// Which tokens go through the model at each step, drawn: a row for each step, a column for each token.

import { last } from "../data/arrays.js";
import { svgElement } from "../parts/dom.js";

const WAYS = /** @type {const} */ (["recomputed", "cached"]);
const TITLE = 18; // pixels above the rows, and
const SPACE = 14; // below them

/**
 * Draws the steps without and with the cache.
 * @param {GenerationStep[]} steps
 * @param {number} wide pixels
 */
export function computedPicture(steps, wide) {
  const latest = last(steps);
  const row = Math.max(2, Math.min(9, Math.floor(120 / steps.length)));
  const gap = row > 3 ? 1 : 0;
  const unit = wide / latest.position;
  const label =
    `In the last step the model computes ${latest.computed.cached} of ${latest.position} tokens with the cache, ` +
    `and all ${latest.computed.recomputed} without it`;
  const high = 2 * (TITLE + row * steps.length) + SPACE;
  const picture = svgElement("svg", { class: "computed", width: wide, height: high, role: "img" });
  picture.setAttribute("aria-label", label);
  WAYS.forEach((way, n) => {
    const top = n * (TITLE + row * steps.length + SPACE);
    const title = way === "cached" ? "With the cache" : "Without the cache";
    picture.append(svgElement("text", { x: 0, y: top + 11 }, title));
    steps.forEach(({ position, computed }, i) => {
      const place = { y: top + TITLE + i * row, height: row - gap };
      const [run, read] = [computed[way], position - computed[way]];
      const width = Math.max(1.5, run * unit);
      if (read) picture.append(svgElement("rect", { class: "read", x: 0, width: read * unit, ...place }));
      picture.append(svgElement("rect", { class: "run", x: read * unit, width, ...place }));
    });
  });
  return picture;
}
