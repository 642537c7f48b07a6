// @ts-check
// The shapes of an SVG drawing on the page.

const GEOMETRY = ["d", "x", "y", "x1", "y1", "x2", "y2", "width", "height", "rx", "cx", "cy", "r"];

/**
 * Copies a shape with its style.
 * @param {DrawnPart} drawn
 * @param {SVGGeometryElement} shape
 */
export function drawShape({ context, style }, shape) {
  const matrix = shape.getScreenCTM();
  if (!matrix) return;
  const { a, b, c, d, e, f } = matrix;
  const given = GEOMETRY.filter((name) => shape.hasAttribute(name));
  const attributes = {
    ...Object.fromEntries(given.map((name) => [name, shape.getAttribute(name)])),
    transform: `matrix(${[a, b, c, d, e, f].join(" ")})`,
    ...context.ink("fill", style.fill, Number(style.fillOpacity || 1)),
    ...context.ink("stroke", style.stroke, Number(style.strokeOpacity || 1)),
    "stroke-width": parseFloat(style.strokeWidth) || 1,
    "stroke-dasharray": style.strokeDasharray === "none" ? null : style.strokeDasharray.replaceAll("px", ""),
    "stroke-linejoin": style.strokeLinejoin,
  };
  context.addShape(shape.localName, attributes, shape.getBoundingClientRect());
}

/**
 * Draws a line of text of an SVG drawing.
 * @param {DrawnPart} drawn
 * @param {SVGTextElement} element
 */
export function drawShapeText({ context, style }, element) {
  const matrix = element.getScreenCTM();
  const text = element.textContent ?? "";
  if (!matrix || !text.trim()) return;
  const { x, y } = element.getStartPositionOfChar(0);
  context.save();
  context.transform([matrix.a, matrix.b, matrix.c, matrix.d, matrix.e, matrix.f]);
  context.font = `${style.fontWeight} ${parseFloat(style.fontSize)}px ${style.fontFamily}`;
  Object.assign(context, { textAlign: "left", textBaseline: "alphabetic" });
  context.fillStyle = style.fill;
  context.fillText(text, x, y, element.getComputedTextLength());
  context.restore();
}
