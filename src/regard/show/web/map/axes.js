// @ts-check
// The two axes of a map: keys along the top, queries down the left, as tokens where there is room for them
// and as numbers where there is not. It draws on whatever has a canvas's methods.

import { axisOf, isStart, labelAt, START_MARK, tokenAt } from "../data/tokens.js";

const ROOM = 13; // pixels that a label needs
export const BESIDE = 26; // pixels of a gutter that are not for labels
const HALF = 5; // pixels from the middle of a label to its edge
const LETTER = 6.7; // pixels of most letters of a token

/**
 * How many tokens apart labels stand: 1, 2, 5, 10, 20, …
 * @param {number} zoom
 */
export function stride(zoom) {
  const least = ROOM / zoom;
  if (least <= 1) return 1;
  const power = 10 ** Math.floor(Math.log10(least));
  return ([1, 2, 5].find((n) => n * power >= least) ?? 10) * power;
}

/**
 * Draws both. Labels of the marked row and column stand out.
 * @param {Drawing} context
 * @param {Scene} scene
 */
export function drawAxes(context, scene) {
  for (const name of /** @type {const} */ (["queries", "keys"])) {
    drawLabels(context, scene, name);
    title(context, scene, name === "queries");
  }
}

/**
 * The tokens and numbers along an axis.
 * @param {Drawing} context
 * @param {Scene} scene
 * @param {Axis} name
 */
export function drawLabels(context, scene, name) {
  const { camera, gutter, colours, fonts, layer, marked } = scene;
  const queries = name === "queries";
  const size = queries ? camera.T : camera.S;
  const { left, top, right, bottom } = camera.frame;
  const step = stride(camera.zoom);
  const first = Math.max(0, Math.ceil(Math.floor(queries ? top : left) / step) * step);
  const end = queries ? bottom : right;
  const last = Math.min(size, end);
  const room = scene.labelRoom?.[name] ?? (queries ? gutter.left : gutter.top) - BESIDE;
  const mark = queries ? marked.row : marked.col;
  const axis = axisOf(scene.meta, scene.text, layer, name);
  const label = (/** @type {number} */ index, /** @type {boolean} */ strong) => {
    const [px, py] = camera.point([index + 0.5, index + 0.5]);
    const along = queries ? gutter.top + py : gutter.left + px;
    if (along < (queries ? gutter.top : gutter.left)) return;
    if (end < size && (end - index - 0.5) * camera.zoom < HALF) return; // the edge would cut it
    const number = String(index);
    const counted = step > 1 || !axis.tokens; // tokens that are next to each other need no number
    const letters = Math.max(3, Math.floor(room / LETTER) - (counted ? number.length + 1 : 0));
    const isMarked = axis.tokens && isStart(tokenAt(axis, index), axis.from + index);
    const token = isMarked ? START_MARK : axis.tokens ? labelAt(axis, index, letters) : "";
    context.save();
    if (queries) context.translate(gutter.left - 8, along);
    else {
      context.translate(along, gutter.top - 8);
      context.rotate(-Math.PI / 2);
    }
    context.font = fonts.token;
    context.textBaseline = "middle";
    context.textAlign = queries ? "right" : "left";
    const gap = context.measureText(" ").width;
    context.fillStyle = strong ? colours.accent : step > 1 ? colours.faint : colours.ink;
    const shown = `\u2068${token}\u2069`;
    // A number stands before its token: to the left of it, or below it.
    const [numberWidth, tokenWidth] = [number, shown].map((text) => context.measureText(text).width);
    context.fillText(shown, queries || !counted ? 0 : numberWidth + gap, 0);
    if (counted) {
      context.fillStyle = colours.soft;
      context.fillText(number, queries && token ? -tokenWidth - gap : 0, 0);
    }
    context.restore();
    context.fillStyle = strong ? colours.accent : colours.line;
    if (queries) context.fillRect(gutter.left - 5, along - 0.5, 4, 1);
    else context.fillRect(along - 0.5, gutter.top - 5, 1, 4);
  };
  for (let index = first; index < last; index += step) {
    const apart = Math.abs(index - mark) * camera.zoom;
    if (mark < 0 || apart >= ROOM) label(index, false);
  }
  if (mark >= Math.floor(queries ? top : left) && mark >= 0 && mark < last) label(mark, true);
}

/**
 * @param {Drawing} context
 * @param {Scene} scene
 * @param {boolean} queries
 */
function title(context, { gutter, colours, fonts }, queries) {
  context.save();
  context.font = fonts.title;
  context.fillStyle = colours.soft;
  context.textBaseline = "top";
  if (queries) {
    context.translate(0, gutter.top);
    context.rotate(-Math.PI / 2);
    context.textAlign = "right";
    context.fillText("query", 0, 2);
  } else {
    context.textAlign = "left";
    context.fillText("key (attended to)", gutter.left, 0);
  }
  context.restore();
}
