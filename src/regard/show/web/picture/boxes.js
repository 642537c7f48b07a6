// @ts-check
// Elements as boxes: their grounds, borders and outlines, and those of what style sheets put before and after them.

import { traceHatch } from "../parts/colours.js";
import { parseColour } from "./colour.js";

const SIDES = /** @type {const} */ (["Top", "Right", "Bottom", "Left"]);
/** A shadow that is a ring, and a ground of slanted lines, as a browser writes them. */
const RING = /^(rgba?\([^)]*\)|color\([^)]*\)) 0px 0px 0px ([\d.]+)px(?:,|$)/;
const HATCH = /^repeating-linear-gradient\(135deg, (rgba?\([^)]*\)|color\([^)]*\))/;

/**
 * A colour as text, less opaque.
 * @param {Colour} colour
 * @param {number} opacity
 */
export function written([red, green, blue, alpha], opacity) {
  return `rgba(${red}, ${green}, ${blue}, ${alpha * opacity})`;
}

/**
 * Draws the grounds and borders of an element, in each of its boxes: those that wrap over lines have several.
 * @param {DrawnPart} drawn
 * @param {Element} element
 */
export function drawBoxes(drawn, element) {
  const { context, style, opacity } = drawn;
  const ground = parseColour(style.backgroundColor);
  const bordered = SIDES.some((side) => borderOf(style, side).width > 0);
  const outlined = style.outlineStyle === "solid" && !element.matches(":focus-visible");
  const ring = RING.exec(style.boxShadow);
  const hatch = HATCH.exec(style.backgroundImage);
  if (!ground[3] && !bordered && !outlined && !ring && !hatch) return;
  const radius = Math.min(12, parseFloat(style.borderTopLeftRadius) || 0);
  for (const box of element.getClientRects()) {
    if (!box.width || !box.height) continue;
    if (ground[3]) context.addRectangle(box, radius, written(ground, opacity));
    if (hatch) drawHatched(context, box, written(parseColour(hatch[1]), opacity));
    if (ring) {
      const width = parseFloat(ring[2]);
      outlineBox(context, box, width / 2, 3, written(parseColour(ring[1]), opacity), width);
    }
    if (bordered) drawBorders(drawn, box, radius);
    if (outlined) {
      const width = parseFloat(style.outlineWidth);
      const off = (parseFloat(style.outlineOffset) || 0) + width / 2;
      outlineBox(context, box, off, 0, written(parseColour(style.outlineColor), opacity), width);
    }
  }
}

/**
 * @param {CSSStyleDeclaration} style
 * @param {typeof SIDES[number]} side
 */
function borderOf(style, side) {
  const kind = style[`border${side}Style`];
  const colour = parseColour(style[`border${side}Color`]);
  const seen = kind !== "none" && kind !== "hidden" && colour[3] > 0;
  return { width: seen ? parseFloat(style[`border${side}Width`]) : 0, colour, kind };
}

/**
 * @param {DrawnPart} drawn
 * @param {DOMRect} box
 * @param {number} radius
 */
function drawBorders({ context, style, opacity }, box, radius) {
  const borders = SIDES.map((side) => borderOf(style, side));
  const [first] = borders;
  const alike = borders.every(
    ({ width, colour }) => width === first.width && String(colour) === String(first.colour),
  );
  if (alike) {
    outlineBox(context, box, -first.width / 2, radius, written(first.colour, opacity), first.width);
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
    context.fillStyle = written(colour, opacity);
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
export function drawPseudo({ context, opacity }, element, which) {
  const style = getComputedStyle(element, which);
  if (style.content === "none" || style.content === "normal" || style.position !== "absolute") return;
  const ground = parseColour(style.backgroundColor);
  const [left, top, width, height] = [style.left, style.top, style.width, style.height].map(parseFloat);
  if (!ground[3] || ![left, top, width, height].every(Number.isFinite)) return;
  const box = element.getBoundingClientRect();
  context.fillStyle = written(ground, opacity * Number(style.opacity));
  context.fillRect(box.left + left, box.top + top, width, height);
}
