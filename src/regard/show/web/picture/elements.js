// @ts-check
// A part of the page as drawing commands: what the browser has laid out, box by box and word by word. Controls are
// left out: what is marked with data-off-paper, and whatever takes input; of a choice, what is chosen is written.

import { drawBoxes, drawPseudo, written } from "./boxes.js";
import { parseColour } from "./colour.js";
import { drawingOf } from "./canvas_drawings.js";
import { drawLetters } from "./letters.js";
import { lightImage } from "./paper.js";
import { pixelsOf } from "./pixels.js";
import { drawShape, drawShapeText } from "./shapes.js";

const LEFT_OUT =
  "[data-off-paper], .bar-of-choices, input, textarea, fieldset, details.menu, noscript, script, style";

/**
 * Draws an element and all in it that lies in `part` of the window, if one is given.
 * @param {SvgDrawing} context
 * @param {Element} element
 * @param {Rectangle | null} [part]
 * @param {number} [opacity]
 */
export function drawElement(context, element, part = null, opacity = 1) {
  if (element.matches(LEFT_OUT)) return;
  if (element instanceof HTMLDetailsElement && !element.open) return;
  const style = getComputedStyle(element);
  const box = element.getBoundingClientRect();
  if (style.display === "none" || style.visibility === "hidden" || (part && isOutside(box, part))) return;
  if (box.width <= 1 && box.height <= 1 && style.overflow === "hidden") return; // for screen readers alone
  const cover = opacity * Number(style.opacity);
  if (!cover) return;
  if (element instanceof SVGElement) {
    drawSvg(context, element, style, part, cover);
    return;
  }
  if (element instanceof HTMLSelectElement) {
    drawChoice(context, element, box, style);
    return;
  }
  drawBoxes(context, element, style, cover);
  if (element instanceof HTMLCanvasElement) {
    drawCanvas(context, element, box, style);
    return;
  }
  const clips = style.overflowX !== "visible" && style.display !== "inline";
  if (clips) {
    context.save();
    context.beginPath();
    context.rect(box.left, box.top, box.width, box.height);
    context.clip();
  }
  drawPseudo(context, element, "::before", cover);
  for (const child of element.childNodes) {
    if (child instanceof Element) drawElement(context, child, part, cover);
    else if (child instanceof Text) drawLetters(context, child, style, cover);
  }
  drawPseudo(context, element, "::after", cover);
  if (clips) context.restore();
}

/**
 * @param {SvgDrawing} context
 * @param {HTMLSelectElement} select
 * @param {DOMRect} box
 * @param {CSSStyleDeclaration} style
 */
function drawChoice(context, select, box, style) {
  const { fontWeight, fontSize, fontFamily, paddingLeft } = style;
  Object.assign(context, { font: `${fontWeight} ${fontSize} ${fontFamily}`, textAlign: "left" });
  Object.assign(context, { textBaseline: "middle", fillStyle: written(parseColour(style.color), 1) });
  const text = select.selectedOptions[0]?.text ?? "";
  context.fillText(text, box.left + parseFloat(paddingLeft), (box.top + box.bottom) / 2);
}

/**
 * @param {Rectangle} box
 * @param {Rectangle} part
 */
function isOutside(box, part) {
  return box.bottom <= part.top || box.top >= part.bottom;
}

/**
 * @param {SvgDrawing} context
 * @param {SVGElement} element
 * @param {CSSStyleDeclaration} style
 * @param {Rectangle | null} part
 * @param {number} opacity
 */
function drawSvg(context, element, style, part, opacity) {
  if (element instanceof SVGGeometryElement) drawShape(context, element, style, opacity);
  else if (element instanceof SVGTextElement) drawShapeText(context, element, style, opacity);
  else for (const child of element.children) drawElement(context, child, part, opacity);
}

/**
 * @param {SvgDrawing} context
 * @param {HTMLCanvasElement} canvas
 * @param {DOMRect} box
 * @param {CSSStyleDeclaration} style
 */
function drawCanvas(context, canvas, box, style) {
  if (!canvas.width || !canvas.height || !box.width) return;
  const drawing = drawingOf(canvas);
  if (drawing) {
    context.save();
    context.translate(box.left, box.top);
    drawing(context, box);
    context.restore();
    return;
  }
  const whole = { left: 0, top: 0, right: canvas.width, bottom: canvas.height };
  const { image } = pixelsOf(canvas, whole);
  context.imageSmoothingEnabled = style.imageRendering !== "pixelated" && image.width > box.width;
  context.drawPixels(lightImage(image), box.left, box.top, box.width, box.height);
}
