// @ts-check
// The colours of attention over a picture: from clear over amber to red, the same in both themes, since the picture
// under them is grey in both.

import { clamp } from "../data/arrays.js";
import { barWithEnds } from "../parts/controls.js";
import { contextOf, element } from "../parts/dom.js";

const STOPS = [
  [250, 204, 77, 0],
  [250, 190, 60, 0.5],
  [240, 120, 40, 0.72],
  [205, 30, 60, 0.88],
]; // red, green, blue, opacity at 0, 1/3, 2/3 and 1

/**
 * The colour of a place between 0 and 1.
 * @param {number} t
 */
export function heatColour(t) {
  const along = clamp(t, 0, 1) * (STOPS.length - 1);
  const i = Math.min(STOPS.length - 2, Math.floor(along));
  const [r, g, b, a] = STOPS[i].map((x, n) => x + (along - i) * (STOPS[i + 1][n] - x));
  return `rgb(${Math.round(r)} ${Math.round(g)} ${Math.round(b)} / ${a.toFixed(3)})`;
}

/** The colours as a strip over grey, with what stands at its two ends. */
export function heatBar() {
  const canvas = element("canvas", { width: 128, height: 8, "aria-hidden": "true" });
  const context = contextOf(canvas);
  context.fillStyle = "#808080";
  context.fillRect(0, 0, 128, 8);
  for (let x = 0; x < 128; x++) {
    context.fillStyle = heatColour(x / 127);
    context.fillRect(x, 0, 1, 8);
  }
  return barWithEnds(canvas);
}
