// @ts-check
// A picture that stands on its own, for a file: the map as it is shown, under its name, over its colour bar.

import { css } from "../common/colours.js";
import { theme } from "../common/theme.js";
import { draw } from "./heatmap.js";

const TOP = 44;
const BOTTOM = 52;
const MARGIN = 20;
const BAR = 240;
const NOTE = MARGIN + BAR + 24; // where the words beside the bar begin
const LINE = 16;
const [LETTER, HEADING] = [6.6, 8.4]; // pixels of most letters, small and in the title

/**
 * @param {Scene} scene
 * @param {FigureWords} words
 */
export function figureSize(scene, { note }) {
  const width = Math.ceil(scene.width + 2 * MARGIN);
  const lines = wrapped(note, width - MARGIN - NOTE);
  return { width, height: Math.ceil(scene.height + TOP + BOTTOM) + LINE * (lines.length - 1), lines };
}

/**
 * A sentence in lines that fit, by the width of most letters.
 * @param {string} text
 * @param {number} room
 */
function wrapped(text, room) {
  const lines = [""];
  for (const word of text.split(" ")) {
    const longer = lines.at(-1) ? `${lines.at(-1)} ${word}` : word;
    if (longer.length * LETTER <= room || !lines.at(-1)) lines[lines.length - 1] = longer;
    else lines.push(word);
  }
  return lines;
}

/**
 * Draws it. `words`: {title, after, note, marks: [[t, text]]}: the title is cut if need be, `after` never.
 * @param {Drawing} context
 * @param {Scene} scene
 * @param {FigureWords} words
 */
export function drawFigure(context, scene, words) {
  const { width, height, lines } = figureSize(scene, words);
  const { colours, fonts } = scene;
  context.fillStyle = colours.paper;
  context.fillRect(0, 0, width, height);
  context.textBaseline = "middle";
  context.textAlign = "left";
  context.font = fonts.heading;
  context.fillStyle = colours.ink;
  const most = Math.max(4, Math.floor((width - 2 * MARGIN) / HEADING) - words.after.length);
  const title = words.title.length > most ? `${words.title.slice(0, most - 1)}…` : words.title;
  context.fillText(title + words.after, MARGIN, TOP / 2);
  context.save();
  context.translate(MARGIN, TOP);
  draw(context, scene);
  context.restore();
  bar(context, words.marks, lines, MARGIN, height - BOTTOM - LINE * (lines.length - 1) + 14, scene);
}

/**
 * @param {Drawing} context
 * @param {FigureWords["marks"]} marks
 * @param {string[]} lines
 * @param {number} x
 * @param {number} y
 * @param {Scene} scene
 */
function bar(context, marks, lines, x, y, { colours, fonts, look }) {
  const [wide, steps] = [BAR, 120];
  for (let step = 0; step < steps; step++) {
    context.fillStyle = css(step / (steps - 1), theme(), look.scale.signed);
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
  lines.forEach((line, n) => context.fillText(line, NOTE, y - 2 + n * LINE));
}
