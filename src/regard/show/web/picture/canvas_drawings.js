// @ts-check
// Drawings of canvases that are more than pixels: whoever draws text or lines on a canvas can leave the drawing here,
// so that figures have it as vectors.

/** @typedef {(context: Drawing, size: Size) => void} CanvasDrawing in pixels of the page */

/** @type {WeakMap<HTMLCanvasElement, CanvasDrawing>} */
export const drawings = new WeakMap();
