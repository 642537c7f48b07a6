// A picture that stands on its own, for a file: the map as it is shown, under its name, over its colour bar.

import { css } from "./colours.js";
import { draw } from "./picture.js";

const TOP = 44;
const BOTTOM = 52;
const MARGIN = 20;

export function figureSize(scene) {
  return { width: Math.ceil(scene.width + 2 * MARGIN), height: Math.ceil(scene.height + TOP + BOTTOM) };
}

/** Draws it. `words`: {title, note, marks: [[t, text]]}; `fonts` as in the scene. */
export function drawFigure(context, scene, words) {
  const { width, height } = figureSize(scene);
  const { colours, fonts } = scene;
  context.fillStyle = colours.paper;
  context.fillRect(0, 0, width, height);
  context.textBaseline = "middle";
  context.textAlign = "left";
  context.font = fonts.heading;
  context.fillStyle = colours.ink;
  context.fillText(words.title, MARGIN, TOP / 2);
  context.save();
  context.translate(MARGIN, TOP);
  draw(context, scene);
  context.restore();
  bar(context, words, MARGIN, height - BOTTOM + 14, scene);
}

function bar(context, { marks, note }, x, y, { colours, fonts }) {
  const [wide, steps] = [240, 120];
  for (let step = 0; step < steps; step++) {
    context.fillStyle = css(step / (steps - 1));
    context.fillRect(x + (step * wide) / steps, y, wide / steps + 0.5, 9);
  }
  context.font = fonts.token;
  context.fillStyle = colours.soft;
  context.textBaseline = "top";
  for (const [n, [t, text]] of marks.entries()) {
    context.textAlign = n === 0 ? "left" : n === marks.length - 1 ? "right" : "center";
    context.fillText(text, x + t * wide, y + 13);
  }
  context.font = fonts.title;
  context.textAlign = "left";
  context.fillText(note, x + wide + 24, y - 2);
}
