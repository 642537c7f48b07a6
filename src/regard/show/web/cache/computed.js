// @ts-check
// Which tokens go through the model at each step, drawn: a row for each step, a column for each token.

import { last } from "../common/arrays.js";
import { contextOf } from "../common/dom.js";

const WAYS = /** @type {const} */ (["recomputed", "cached"]);

/**
 * Draws the steps without and with the cache: computed tokens in the colour `run`, cached ones in `read`.
 * @param {HTMLCanvasElement} canvas
 * @param {GenerationStep[]} steps
 * @param {string} run
 * @param {string} read
 */
export function drawComputed(canvas, steps, run, read) {
  const style = getComputedStyle(canvas);
  const wide = canvas.clientWidth || 480;
  const columns = last(steps).position;
  const row = Math.max(2, Math.min(9, Math.floor(120 / steps.length)));
  const gap = row > 3 ? 1 : 0;
  const high = 18 + row * steps.length;
  const pixel = devicePixelRatio || 1;
  canvas.width = wide * pixel;
  canvas.height = (2 * high + 14) * pixel;
  canvas.style.height = `${2 * high + 14}px`;
  const context = contextOf(canvas);
  context.scale(pixel, pixel);
  context.font = `12px ${style.fontFamily}`;
  const unit = wide / columns;
  WAYS.forEach((way, n) => {
    const top = n * (high + 14);
    context.fillStyle = style.color;
    context.fillText(way === "cached" ? "With the cache" : "Without the cache", 0, top + 11);
    steps.forEach((step, i) => {
      const y = top + 18 + i * row;
      const through = step.computed[way];
      if (way === "cached") {
        context.fillStyle = read;
        context.fillRect(0, y, (step.position - through) * unit, row - gap);
      }
      context.fillStyle = run;
      context.fillRect((step.position - through) * unit, y, Math.max(1.5, through * unit), row - gap);
    });
  });
  const latest = last(steps);
  canvas.setAttribute(
    "aria-label",
    `In the last step the model computes ${latest.computed.cached} of ${latest.position} tokens with the cache, ` +
      `and all ${latest.computed.recomputed} without it`,
  );
}
