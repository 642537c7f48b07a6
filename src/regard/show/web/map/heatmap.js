// @ts-check
// Draws the heatmap of one head: tiles, boundary, numbers, cursor, axes. It draws on whatever has a
// canvas's methods, so that the screen, a PNG and an SVG all show the same.

import { inkOn, traceHatch } from "../parts/colours.js";
import { brief, cellShare } from "../data/format.js";
import { areWeights } from "../data/quantity.js";
import { settings } from "../data/settings.js";
import { theme } from "../parts/theme.js";
import { drawAxes } from "./axes.js";
import { painted } from "./tile_image.js";

export const NUMBERS = 28; // pixels a cell from which its weight is written in it

/**
 * Draws a scene.
 * @param {Drawing} context
 * @param {Scene} scene
 */
export function draw(context, scene) {
  const { width, height, gutter, camera, colours } = scene;
  const shown = extent(camera);
  const plate = { ...scene, context, shown };
  context.fillStyle = colours.paper;
  context.fillRect(0, 0, width, height);
  context.save();
  context.beginPath();
  context.rect(gutter.left, gutter.top, shown.width, shown.height);
  context.clip();
  context.translate(gutter.left, gutter.top);
  hatch(plate);
  tiles(plate);
  if (camera.zoom >= NUMBERS) numbers(plate);
  if (camera.zoom >= 10) lattice(plate);
  boundary(plate);
  cells(plate);
  context.restore();
  context.strokeStyle = colours.strongLine;
  context.lineWidth = 1;
  context.strokeRect(gutter.left - 0.5, gutter.top - 0.5, shown.width + 1, shown.height + 1);
  drawAxes(context, scene);
}

/**
 * How much of the picture the map takes.
 * @param {Scene["camera"]} camera
 * @returns {Size}
 */
export function extent(camera) {
  return {
    width: Math.min(camera.width, camera.S * camera.zoom),
    height: Math.min(camera.height, camera.T * camera.zoom),
  };
}

/**
 * The pattern of hidden cells: thin slanted lines, unlike any weight.
 * @param {Plate} plate
 */
function hatch({ context, colours, shown }) {
  context.fillStyle = colours.sunken;
  context.fillRect(0, 0, shown.width, shown.height);
  context.beginPath();
  traceHatch(context, { left: 0, top: 0, ...shown }, 7);
  context.strokeStyle = colours.hatch;
  context.lineWidth = 1;
  context.stroke();
}

/** @param {Plate} plate */
function tiles({ context, camera, colours, drawn, thumb, look, pixel }) {
  /** @param {number} value */
  const snap = (value) => Math.round(value / pixel) * pixel; // seams show where edges are half a pixel
  for (const one of drawn) {
    const { tile, z, i, j } = one;
    const part = inSight(one.part, camera.frame, 2 ** z);
    const [x0, y0] = camera.point([part.left, part.top]).map(snap);
    const [x1, y1] = camera.point([part.right, part.bottom]).map(snap);
    if (!tile && thumb) fromThumb(context, camera, thumb, part, [x0, y0, x1 - x0, y1 - y0]);
    else if (!tile) {
      // What is still being computed has a plain ground, unlike any weight and unlike what the mask hides.
      context.fillStyle = colours.line;
      context.fillRect(x0, y0, x1 - x0, y1 - y0);
    }
    if (!tile) continue;
    const size = 2 ** z;
    const [sx, sy] = [part.left / size - j * settings.tile, part.top / size - i * settings.tile];
    // A last cell that holds fewer tokens is drawn as large as they are.
    const [sw, sh] = [(part.right - part.left) / size, (part.bottom - part.top) / size];
    context.imageSmoothingEnabled = (camera.zoom * size) / pixel < 2.5;
    const canvas = painted(tile, look);
    context.drawImage(canvas, sx, sy, sw, sh, x0, y0, x1 - x0, y1 - y0);
  }
}

/**
 * As much of a part as the frame shows, to whole cells.
 * @param {Rectangle} part
 * @param {Rectangle} frame
 * @param {number} size
 * @returns {Rectangle}
 */
function inSight(part, frame, size) {
  return {
    left: Math.max(part.left, Math.floor(frame.left / size) * size),
    top: Math.max(part.top, Math.floor(frame.top / size) * size),
    right: Math.min(part.right, Math.ceil(frame.right / size) * size),
    bottom: Math.min(part.bottom, Math.ceil(frame.bottom / size) * size),
  };
}

/**
 * Before anything has come, the small picture stands for the large one.
 * @param {Drawing} context
 * @param {Scene["camera"]} camera
 * @param {HTMLCanvasElement} thumb
 * @param {Rectangle} part
 * @param {[number, number, number, number]} place
 */
function fromThumb(context, camera, thumb, part, place) {
  const [w, h] = [settings.thumb / camera.S, settings.thumb / camera.T];
  context.imageSmoothingEnabled = true;
  const wide = (part.right - part.left) * w;
  context.drawImage(thumb, part.left * w, part.top * h, wide, (part.bottom - part.top) * h, ...place);
}

/**
 * Each cell's weight, written in it.
 * @param {Plate} plate
 */
function numbers({ context, camera, look, fonts, quantity, weightAt }) {
  const { left, top, right, bottom } = camera.frame;
  const shares = areWeights(quantity);
  const digits = camera.zoom >= 72 ? 4 : camera.zoom >= 44 ? 3 : 2;
  context.font = fonts.number;
  context.textAlign = "center";
  context.textBaseline = "middle";
  for (let row = Math.max(0, Math.floor(top)); row < Math.min(camera.T, bottom); row++) {
    for (let col = Math.max(0, Math.floor(left)); col < Math.min(camera.S, right); col++) {
      const weight = weightAt(row, col);
      if (weight === null) continue;
      const [x, y] = camera.point([col + 0.5, row + 0.5]);
      context.fillStyle = inkOn(look.scale.at(weight), theme(), look.scale.signed);
      context.fillText(shares ? cellShare(weight, digits > 2) : brief(weight, digits), x, y);
    }
  }
}

/**
 * Thin lines between large cells.
 * @param {Plate} plate
 */
function lattice({ context, camera, colours, shown }) {
  const { left, top } = camera.frame;
  context.fillStyle = colours.lattice;
  for (let col = Math.max(1, Math.ceil(left)); ; col++) {
    const [x] = camera.point([col, 0]);
    if (x > shown.width) break;
    context.fillRect(Math.round(x) - 0.5, 0, 1, shown.height);
  }
  for (let row = Math.max(1, Math.ceil(top)); ; row++) {
    const [, y] = camera.point([0, row]);
    if (y > shown.height) break;
    context.fillRect(0, Math.round(y) - 0.5, shown.width, 1);
  }
}

/**
 * Where the prompt ends and what was generated begins.
 * @param {Plate} plate
 */
function boundary({ context, camera, colours, boundary: at, shown }) {
  if (!at) return;
  const [x, y] = camera.point([at.key, at.query]);
  context.strokeStyle = colours.accent;
  context.lineWidth = 1;
  context.setLineDash([6, 4]);
  context.beginPath();
  context.moveTo(Math.round(x) + 0.5, 0);
  context.lineTo(Math.round(x) + 0.5, shown.height);
  context.moveTo(0, Math.round(y) + 0.5);
  context.lineTo(shown.width, Math.round(y) + 0.5);
  context.stroke();
  context.setLineDash([]);
}

/**
 * The cell under the pointer and the chosen one.
 * @param {Plate} plate
 */
function cells({ context, camera, hover, cursor, colours }) {
  for (const cell of [hover, cursor]) {
    if (!cell) continue;
    const side = camera.zoom * cell.size;
    const [x, y] = camera.point([cell.col, cell.row]);
    const grown = Math.max(0, (8 - side) / 2); // a small cell would be hard to see
    context.strokeStyle = cell === cursor ? colours.accent : colours.ink;
    context.lineWidth = cell === cursor ? 2 : 1;
    context.strokeRect(x - grown, y - grown, side + 2 * grown, side + 2 * grown);
  }
}

/**
 * The colours of the page as a drawing needs them.
 * @param {HTMLElement} root
 * @returns {DrawingColours}
 */
export function drawingColours(root) {
  const style = getComputedStyle(root);
  const get = (/** @type {string} */ name) => resolved(root, style.getPropertyValue(name).trim());
  return {
    paper: get("--paper"),
    sunken: get("--sunken"),
    ink: get("--ink"),
    soft: get("--soft"),
    faint: get("--faint"),
    line: get("--line"),
    strongLine: get("--strong-line"),
    accent: get("--accent"),
    hatch: get("--hatch"),
    lattice: get("--lattice"),
  };
}

/**
 * A colour that a canvas understands: light-dark() is resolved by asking the style of an element.
 * @param {HTMLElement} root
 * @param {string} value
 */
function resolved(root, value) {
  const probe = document.createElement("i");
  probe.style.color = value;
  probe.style.forcedColorAdjust = "none"; // a drawing has colours of its own
  root.append(probe);
  const colour = getComputedStyle(probe).color;
  probe.remove();
  return colour;
}
