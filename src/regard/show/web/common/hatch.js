// @ts-check
// The pattern of what is hidden: thin slanted lines, unlike any weight.

/**
 * Adds the lines to a path, `every` so many pixels along the edges of a box.
 * @param {Drawing} context
 * @param {{ left: number, top: number, width: number, height: number }} box
 * @param {number} every
 */
export function traceHatch(context, { left, top, width, height }, every) {
  for (let at = every - 1; at < width + height; at += every) {
    context.moveTo(left + Math.max(0, at - height), top + Math.min(at, height));
    context.lineTo(left + Math.min(at, width), top + Math.max(0, at - width));
  }
}
