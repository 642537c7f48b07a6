// @ts-check
// Elements as boxes: their grounds, borders and outlines, and those of what style sheets put before and after them.

import { inkOn, rampPlace, traceHatch } from "../parts/colours.js";
import { parseColour } from "./colour.js";
import { lightColour } from "./paper.js";

const SIDES = /** @type {const} */ (["Top", "Right", "Bottom", "Left"]);
/** A shadow that is a ring, and a ground of slanted lines, as a browser writes them. */
const RING = /^(rgba?\([^)]*\)|color\([^)]*\)) 0px 0px 0px ([\d.]+)px(?:,|$)/;
const HATCH = /^repeating-linear-gradient\(135deg, (rgba?\([^)]*\)|color\([^)]*\))/;
const CURVE = 0.5523; // of a corner's radius: where the control points of a quarter circle are

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
 * @param {SvgDrawing} context
 * @param {Element} element
 * @param {CSSStyleDeclaration} style
 * @param {number} opacity
 */
export function drawBoxes(context, element, style, opacity) {
  const ground = lightColour(parseColour(style.backgroundColor));
  const bordered = SIDES.some((side) => borderOf(style, side).width > 0);
  const outlined = style.outlineStyle === "solid" && !element.matches(":focus-visible");
  const ring = RING.exec(style.boxShadow);
  const hatch = HATCH.exec(style.backgroundImage);
  if (!ground[3] && !bordered && !outlined && !ring && !hatch) return;
  const radius = Math.min(12, parseFloat(style.borderTopLeftRadius) || 0);
  for (const box of element.getClientRects()) {
    if (!box.width || !box.height) continue;
    if (ground[3]) {
      context.fillStyle = written(ground, opacity);
      context.beginPath();
      traceRounded(context, box, radius);
      context.fill();
    }
    if (hatch) drawHatched(context, box, written(parseColour(hatch[1]), opacity));
    if (ring) drawRing(context, box, parseColour(ring[1]), parseFloat(ring[2]), opacity);
    if (bordered) drawBorders(context, box, style, radius, opacity);
    if (outlined) drawOutline(context, box, style, opacity);
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
 * @param {SvgDrawing} context
 * @param {DOMRect} box
 * @param {CSSStyleDeclaration} style
 * @param {number} radius
 * @param {number} opacity
 */
function drawBorders(context, box, style, radius, opacity) {
  const borders = SIDES.map((side) => borderOf(style, side));
  const [first] = borders;
  const alike = borders.every(
    ({ width, colour }) => width === first.width && String(colour) === String(first.colour),
  );
  if (alike) {
    const half = first.width / 2;
    Object.assign(context, { strokeStyle: written(first.colour, opacity), lineWidth: first.width });
    context.beginPath();
    traceRounded(
      context,
      new DOMRect(box.x + half, box.y + half, box.width - 2 * half, box.height - 2 * half),
      radius,
    );
    context.stroke();
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
 * @param {SvgDrawing} context
 * @param {DOMRect} box
 * @param {CSSStyleDeclaration} style
 * @param {number} opacity
 */
function drawOutline(context, box, style, opacity) {
  const width = parseFloat(style.outlineWidth);
  const off = (parseFloat(style.outlineOffset) || 0) + width / 2;
  Object.assign(context, {
    strokeStyle: written(parseColour(style.outlineColor), opacity),
    lineWidth: width,
  });
  context.strokeRect(box.x - off, box.y - off, box.width + 2 * off, box.height + 2 * off);
}

/**
 * @param {SvgDrawing} context
 * @param {DOMRect} box
 * @param {Colour} colour
 * @param {number} width
 * @param {number} opacity
 */
function drawRing(context, box, colour, width, opacity) {
  Object.assign(context, { strokeStyle: written(colour, opacity), lineWidth: width });
  context.beginPath();
  const off = width / 2;
  traceRounded(context, new DOMRect(box.x - off, box.y - off, box.width + width, box.height + width), 3);
  context.stroke();
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
 * A rectangle with round corners.
 * @param {SvgDrawing} context
 * @param {Pick<DOMRect, "x" | "y" | "width" | "height">} box
 * @param {number} radius
 */
function traceRounded(context, { x, y, width, height }, radius) {
  const r = Math.min(radius, width / 2, height / 2);
  if (r < 0.5) {
    context.rect(x, y, width, height);
    return;
  }
  const [right, bottom, k] = [x + width, y + height, r * (1 - CURVE)];
  context.moveTo(x + r, y);
  context.lineTo(right - r, y);
  context.bezierCurveTo(right - k, y, right, y + k, right, y + r);
  context.lineTo(right, bottom - r);
  context.bezierCurveTo(right, bottom - k, right - k, bottom, right - r, bottom);
  context.lineTo(x + r, bottom);
  context.bezierCurveTo(x + k, bottom, x, bottom - k, x, bottom - r);
  context.lineTo(x, y + r);
  context.bezierCurveTo(x, y + k, x + k, y, x + r, y);
  context.closePath();
}

/**
 * Draws what a style sheet puts before or after the contents of an element, if it is a box at a fixed place.
 * @param {SvgDrawing} context
 * @param {Element} element
 * @param {"::before" | "::after"} which
 * @param {number} opacity
 */
export function drawPseudo(context, element, which, opacity) {
  const style = getComputedStyle(element, which);
  if (style.content === "none" || style.content === "normal" || style.position !== "absolute") return;
  const ground = parseColour(style.backgroundColor);
  const [left, top, width, height] = [style.left, style.top, style.width, style.height].map(parseFloat);
  if (!ground[3] || ![left, top, width, height].every(Number.isFinite)) return;
  const box = element.getBoundingClientRect();
  context.fillStyle = written(ground, opacity * Number(style.opacity));
  context.fillRect(box.left + left, box.top + top, width, height);
}

/**
 * The ink of an element's text: on a cell in a colour of the ramp it is that of paper.
 * @param {Element} element
 * @param {CSSStyleDeclaration} style
 * @returns {Colour}
 */
export function inkOf(element, style) {
  const ground = rampPlace(lightColour(parseColour(style.backgroundColor)));
  const own = element instanceof HTMLElement && element.style.color !== "";
  return own && ground ? parseColour(inkOn(ground.t, "light", ground.signed)) : parseColour(style.color);
}
