// @ts-check
// Elements as boxes: their grounds, borders and outlines, and those of what style sheets put before and after them.

import { traceHatch } from "../parts/colours.js";
import { parseColour } from "./colour.js";

const SIDES = /** @type {const} */ (["Top", "Right", "Bottom", "Left"]);
/** A shadow that is a ring, and a ground of slanted lines, as a browser writes them. */
const RING = /^(rgba?\([^)]*\)|color\([^)]*\)) 0px 0px 0px ([\d.]+)px(?:,|$)/;
const HATCH = /^repeating-linear-gradient\(135deg, (rgba?\([^)]*\)|color\([^)]*\))/;

/**
 * Draws the grounds and borders of an element, in each of its boxes: those that wrap over lines have several.
 * @param {DrawnPart} drawn
 * @param {Element} element
 */
export function drawBoxes(drawn, element) {
  const { context, style } = drawn;
  const isFilled = parseColour(style.backgroundColor)[3] > 0;
  const bordered = SIDES.some((side) => borderOf(style, side).width > 0);
  const outlined = style.outlineStyle === "solid" && !element.matches(":focus-visible");
  const ring = RING.exec(style.boxShadow);
  const hatch = HATCH.exec(style.backgroundImage);
  if (!isFilled && !bordered && !outlined && !ring && !hatch) return;
  const radius = Math.min(12, parseFloat(style.borderTopLeftRadius) || 0);
  for (const box of element.getClientRects()) {
    if (!box.width || !box.height) continue;
    if (isFilled) context.addRectangle(box, radius, style.backgroundColor);
    if (hatch) drawHatched(context, box, hatch[1]);
    if (ring) outlineBox(context, box, parseFloat(ring[2]) / 2, 3, ring[1], parseFloat(ring[2]));
    if (bordered) drawBorders(drawn, box, radius);
    if (outlined) {
      const width = parseFloat(style.outlineWidth);
      const off = (parseFloat(style.outlineOffset) || 0) + width / 2;
      outlineBox(context, box, off, 0, style.outlineColor, width);
    }
  }
}

/**
 * @param {CSSStyleDeclaration} style
 * @param {typeof SIDES[number]} side
 */
function borderOf(style, side) {
  const kind = style[`border${side}Style`];
  const colour = style[`border${side}Color`];
  const seen = kind !== "none" && kind !== "hidden" && parseColour(colour)[3] > 0;
  return { width: seen ? parseFloat(style[`border${side}Width`]) : 0, colour, kind };
}

/**
 * @param {DrawnPart} drawn
 * @param {DOMRect} box
 * @param {number} radius
 */
function drawBorders({ context, style }, box, radius) {
  const borders = SIDES.map((side) => borderOf(style, side));
  const [first] = borders;
  const alike = borders.every(({ width, colour }) => width === first.width && colour === first.colour);
  if (alike) {
    outlineBox(context, box, -first.width / 2, radius, first.colour, first.width);
    return;
  }
  /** @type {[number, number, number, number][]} */
  const places = [
    [box.left, box.top, box.width, borders[0].width],
    [box.right - borders[1].width, box.top, borders[1].width, box.height],
    [box.left, box.bottom - borders[2].width, box.width, borders[2].width],
    [box.left, box.top, borders[3].width, box.height],
  ];
  borders.forEach(({ width, colour }, n) => {
    if (!width) return;
    context.fillStyle = colour;
    context.fillRect(...places[n]);
  });
}

/**
 * A line around a box.
 * @param {SvgDrawing} context
 * @param {DOMRect} box
 * @param {number} off pixels from the box to the middle of the line, outwards
 * @param {number} radius
 * @param {string} colour
 * @param {number} width
 */
function outlineBox(context, { x, y, width: wide, height: high }, off, radius, colour, width) {
  const box = new DOMRect(x - off, y - off, wide + 2 * off, high + 2 * off);
  context.addRectangle(box, radius, colour, width);
}

/**
 * Thin slanted lines.
 * @param {SvgDrawing} context
 * @param {DOMRect} box
 * @param {string} colour
 */
function drawHatched(context, box, colour) {
  context.beginPath();
  traceHatch(context, box, 5);
  Object.assign(context, { strokeStyle: colour, lineWidth: 1 });
  context.stroke();
}

/**
 * Draws what a style sheet puts before or after the contents of an element, if it is a box at a fixed place.
 * @param {DrawnPart} drawn
 * @param {Element} element
 * @param {"::before" | "::after"} which
 */
export function drawPseudo({ context }, element, which) {
  const style = getComputedStyle(element, which);
  if (style.content === "none" || style.content === "normal" || style.position !== "absolute") return;
  const [left, top, width, height] = [style.left, style.top, style.width, style.height].map(parseFloat);
  if (![left, top, width, height].every(Number.isFinite)) return;
  const box = element.getBoundingClientRect();
  context.save();
  context.globalAlpha *= Number(style.opacity);
  context.fillStyle = style.backgroundColor;
  context.fillRect(box.left + left, box.top + top, width, height);
  context.restore();
}
