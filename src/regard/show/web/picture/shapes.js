// @ts-check
// The shapes of an SVG drawing on the page.

import { parseColour } from "./colour.js";
import { written } from "./boxes.js";

const STEP = 3; // pixels between the points that a curve is drawn through
const STRAIGHT = /^[\sMLZ\d.,e+-]*$/;
const SEGMENT = /([ML])\s*([-\d.e+]+)[\s,]+([-\d.e+]+)|Z/g;

/**
 * Draws a shape with its style.
 * @param {SvgDrawing} context
 * @param {SVGGeometryElement} shape
 * @param {CSSStyleDeclaration} style
 * @param {number} opacity
 */
export function drawShape(context, shape, style, opacity) {
  const matrix = shape.getScreenCTM();
  if (!matrix) return;
  context.save();
  context.transform([matrix.a, matrix.b, matrix.c, matrix.d, matrix.e, matrix.f]);
  context.beginPath();
  trace(context, shape);
  if (style.fill !== "none") {
    context.fillStyle = written(parseColour(style.fill), opacity * Number(style.fillOpacity || 1));
    context.fill();
  }
  if (style.stroke !== "none") {
    context.strokeStyle = written(parseColour(style.stroke), opacity * Number(style.strokeOpacity || 1));
    context.lineWidth = parseFloat(style.strokeWidth) || 1;
    const dash = style.strokeDasharray;
    context.setLineDash(dash === "none" ? [] : dash.split(/[\s,]+/).map(parseFloat));
    context.stroke();
    context.setLineDash([]);
  }
  context.restore();
}

/**
 * @param {SvgDrawing} context
 * @param {SVGGeometryElement} shape
 */
function trace(context, shape) {
  const path = shape.getAttribute("d") ?? "";
  if (shape instanceof SVGPathElement && STRAIGHT.test(path)) {
    for (const [, letter, x, y] of path.replaceAll("L", " L").matchAll(SEGMENT)) {
      if (letter === "M") context.moveTo(Number(x), Number(y));
      else if (letter === "L") context.lineTo(Number(x), Number(y));
      else context.closePath();
    }
    return;
  }
  const length = shape.getTotalLength();
  const straight = shape instanceof SVGLineElement;
  const count = straight ? 1 : Math.min(400, Math.max(8, Math.ceil(length / STEP)));
  for (let n = 0; n <= count; n++) {
    const { x, y } = shape.getPointAtLength((length * n) / count);
    if (n === 0) context.moveTo(x, y);
    else context.lineTo(x, y);
  }
  if (shape instanceof SVGCircleElement || shape instanceof SVGRectElement) context.closePath();
}

/**
 * Draws a line of text of an SVG drawing.
 * @param {SvgDrawing} context
 * @param {SVGTextElement} element
 * @param {CSSStyleDeclaration} style
 * @param {number} opacity
 */
export function drawShapeText(context, element, style, opacity) {
  const matrix = element.getScreenCTM();
  const text = element.textContent ?? "";
  if (!matrix || !text.trim()) return;
  const { x, y } = element.getStartPositionOfChar(0);
  context.save();
  context.transform([matrix.a, matrix.b, matrix.c, matrix.d, matrix.e, matrix.f]);
  context.font = `${style.fontWeight} ${parseFloat(style.fontSize)}px ${style.fontFamily}`;
  Object.assign(context, { textAlign: "left", textBaseline: "alphabetic" });
  context.fillStyle = written(parseColour(style.fill), opacity);
  context.fillText(text, x, y, element.getComputedTextLength());
  context.restore();
}
