// @ts-check
// Which tokens go through the model at each step, drawn: a row for each step, a column for each token.

import { last } from "../data/arrays.js";
import { contextOf } from "../parts/dom.js";
import { drawings } from "../picture/canvas_drawings.js";

const WAYS = /** @type {const} */ (["recomputed", "cached"]);
const TITLE = 18; // pixels above the rows, and
const SPACE = 14; // below them

/** @typedef {() => { run: string, read: string }} ComputedColours of computed and of cached tokens, at this moment */

/**
 * Draws the steps without and with the cache.
 * @param {HTMLCanvasElement} canvas
 * @param {GenerationStep[]} steps
 * @param {ComputedColours} colours
 */
export function drawComputed(canvas, steps, colours) {
  const wide = canvas.clientWidth || 480;
  const row = Math.max(2, Math.min(9, Math.floor(120 / steps.length)));
  const high = 2 * (TITLE + row * steps.length) + SPACE;
  const pixel = devicePixelRatio || 1;
  canvas.width = wide * pixel;
  canvas.height = high * pixel;
  canvas.style.height = `${high}px`;
  const context = contextOf(canvas);
  context.scale(pixel, pixel);
  const paint = (/** @type {Drawing} */ drawing) => {
    const { fontFamily, color } = getComputedStyle(canvas);
    drawing.font = `12px ${fontFamily}`;
    WAYS.forEach((way, n) => {
      const top = n * (TITLE + row * steps.length + SPACE);
      drawing.fillStyle = color;
      drawing.fillText(way === "cached" ? "With the cache" : "Without the cache", 0, top + 11);
      paintRows(drawing, steps, way, { top: top + TITLE, row, wide }, colours());
    });
  };
  paint(context);
  drawings.set(canvas, paint);
  const latest = last(steps);
  canvas.setAttribute(
    "aria-label",
    `In the last step the model computes ${latest.computed.cached} of ${latest.position} tokens with the cache, ` +
      `and all ${latest.computed.recomputed} without it`,
  );
}

/**
 * @param {Drawing} drawing
 * @param {GenerationStep[]} steps
 * @param {typeof WAYS[number]} way
 * @param {{ top: number, row: number, wide: number }} place
 * @param {ReturnType<ComputedColours>} colours
 */
function paintRows(drawing, steps, way, { top, row, wide }, { run, read }) {
  const gap = row > 3 ? 1 : 0;
  const unit = wide / last(steps).position;
  steps.forEach((step, i) => {
    const y = top + i * row;
    const through = step.computed[way];
    if (way === "cached") {
      drawing.fillStyle = read;
      drawing.fillRect(0, y, (step.position - through) * unit, row - gap);
    }
    drawing.fillStyle = run;
    drawing.fillRect((step.position - through) * unit, y, Math.max(1.5, through * unit), row - gap);
  });
}
