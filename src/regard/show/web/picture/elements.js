// @ts-check
// A part of the page as drawing commands: what the browser has laid out, box by box and word by word. Controls are
// left out: what is marked with data-off-paper, and whatever takes input; of a choice, what is chosen is written.

import { drawBoxes, drawPseudo } from "./boxes.js";
import { drawings } from "./canvas_drawings.js";
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
 */
export function drawElement(context, element, part = null) {
  if (element.matches(LEFT_OUT)) return;
  if (element instanceof HTMLDetailsElement && !element.open) return;
  const style = getComputedStyle(element);
  const box = element.getBoundingClientRect();
  const unseen = style.display === "none" || style.visibility === "hidden" || !Number(style.opacity);
  if (unseen || (part && (box.bottom <= part.top || box.top >= part.bottom))) return;
  if (box.width <= 1 && box.height <= 1 && style.overflow === "hidden") return; // for screen readers alone
  context.save();
  context.globalAlpha *= Number(style.opacity);
  drawSeen({ context, style }, element, box, part);
  context.restore();
}

/**
 * @param {DrawnPart} drawn
 * @param {Element} element
 * @param {DOMRect} box
 * @param {Rectangle | null} part
 */
function drawSeen(drawn, element, box, part) {
  const { context, style } = drawn;
  if (element instanceof SVGGeometryElement) return drawShape(drawn, element);
  if (element instanceof SVGTextElement) return drawShapeText(drawn, element);
  if (element instanceof HTMLSelectElement) return drawChoice(drawn, element, box);
  const isDrawing = element instanceof SVGElement; // its parts have no boxes
  if (!isDrawing) drawBoxes(drawn, element);
  if (element instanceof HTMLCanvasElement) return drawCanvas(drawn, element, box);
  if (!isDrawing && style.overflowX !== "visible" && style.display !== "inline") {
    context.beginPath();
    context.rect(box.left, box.top, box.width, box.height);
    context.clip();
  }
  drawPseudo(drawn, element, "::before");
  for (const child of element.childNodes) {
    if (child instanceof Element) drawElement(context, child, part);
    else if (child instanceof Text) drawLetters(drawn, child);
  }
  drawPseudo(drawn, element, "::after");
}

/**
 * @param {DrawnPart} drawn
 * @param {HTMLSelectElement} select
 * @param {DOMRect} box
 */
function drawChoice({ context, style }, select, box) {
  const { fontWeight, fontSize, fontFamily, paddingLeft } = style;
  Object.assign(context, { font: `${fontWeight} ${fontSize} ${fontFamily}`, textAlign: "left" });
  Object.assign(context, { textBaseline: "middle", fillStyle: style.color });
  const text = select.selectedOptions[0]?.text ?? "";
  context.fillText(text, box.left + parseFloat(paddingLeft), (box.top + box.bottom) / 2);
}

/**
 * @param {DrawnPart} drawn
 * @param {HTMLCanvasElement} canvas
 * @param {DOMRect} box
 */
function drawCanvas({ context, style }, canvas, box) {
  if (!canvas.width || !canvas.height || !box.width) return;
  const drawing = drawings.get(canvas);
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
