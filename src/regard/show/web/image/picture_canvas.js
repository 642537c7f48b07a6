// @ts-check
// One picture with its patches on a canvas: grey or in its colours, the heat of each patch over it, the grid, and
// marks. It knows places of patches; which tokens they are is the view's business.

import { makeScale } from "../parts/colours.js";
import { contextOf, element } from "../parts/dom.js";
import { setDrawing } from "../picture/canvas_drawings.js";
import { heatColour } from "./heat.js";

const LATTICE_FROM = 7; // pixels a patch from which on the grid is drawn
const SMOOTH_FROM = 128; // pixels to a side: smaller pictures show their own

/**
 * @typedef {object} PictureMarks
 * @property {number} chosen the place of the patch that is looked from, or -1
 * @property {number} pointed the place under the pointer or the keyboard, or -1
 * @property {Set<number>} outliers places that receive far more than others
 * @property {Set<number>} apart places that have no colour
 */

/** @type {PictureMarks} */
export const NO_MARKS = { chosen: -1, pointed: -1, outliers: new Set(), apart: new Set() };

/** A picture and the heat over it. */
export class PictureCanvas {
  /**
   * @param {PatchSpan} span
   * @param {PictureMeta | null} picture null if it was not kept
   */
  constructor(span, picture) {
    this.span = span;
    this.canvas = element("canvas", { class: "picture" });
    setDrawing(this.canvas, (context, { width, height }) => {
      const { canvas } = this;
      context.drawImage(canvas, 0, 0, canvas.width, canvas.height, 0, 0, width, height);
    });
    this.canvas.style.setProperty(
      "--shape",
      String(picture ? picture.width / picture.height : span.cols / span.rows),
    );
    /** @type {HTMLCanvasElement | null} */
    this.grey = null;
    /** @type {HTMLImageElement | null} */
    this.image = null;
    /** @type {() => void} */
    this.again = () => {};
    if (picture) this.load(picture);
  }

  /** @param {PictureMeta} picture */
  load({ src }) {
    const image = new Image();
    image.addEventListener("load", () => {
      this.image = image;
      this.grey = inGrey(image);
      this.again();
    });
    image.src = src;
  }

  /**
   * Draws it; `heat` has a number from 0 for each place, at whose `top` the colours end, or is null for none.
   * @param {Float32Array | null} heat
   * @param {{ top: number, scale: string, colour: boolean, marks: PictureMarks }} look
   */
  draw(heat, look) {
    this.again = () => this.draw(heat, look);
    const { canvas, span } = this;
    const ratio = window.devicePixelRatio || 1;
    const [wide, high] = [canvas.clientWidth, canvas.clientHeight].map((n) => Math.round(n * ratio));
    if (!wide || !high) return;
    if (canvas.width !== wide || canvas.height !== high) [canvas.width, canvas.height] = [wide, high];
    const context = contextOf(canvas);
    const ground = look.colour ? this.image : this.grey;
    context.imageSmoothingEnabled = (this.image?.naturalWidth ?? 0) >= SMOOTH_FROM;
    context.fillStyle = "#808080";
    context.fillRect(0, 0, wide, high);
    if (ground) context.drawImage(ground, 0, 0, wide, high);
    const boxOf = this.boxes(wide, high);
    const { marks } = look;
    if (heat) {
      const shade = makeScale({ scale: look.scale, top: look.top, bottom: Math.min(1e-4, look.top / 10) });
      heat.forEach((weight, place) => {
        if (!(weight > 0) || marks.apart.has(place)) return;
        context.fillStyle = heatColour(shade.at(weight));
        context.fillRect(...boxOf(place));
      });
    }
    if (wide / span.cols / ratio >= LATTICE_FROM) drawLattice(context, span, wide, high, ratio);
    for (const place of marks.outliers) ring(context, boxOf(place), ratio);
    if (marks.pointed >= 0) frame(context, boxOf(marks.pointed), ratio, ["#000000a0", "#ffffff"], 1);
    if (marks.chosen >= 0) frame(context, boxOf(marks.chosen), ratio, ["#ffffff", "#0b57d0"], 2);
  }

  /**
   * The rectangle of each place, as whole pixels.
   * @param {number} wide
   * @param {number} high
   * @returns {(place: number) => [number, number, number, number]}
   */
  boxes(wide, high) {
    const { rows, cols } = this.span;
    return (place) => {
      const [row, col] = [Math.floor(place / cols), place % cols];
      const [left, top] = [Math.round((col * wide) / cols), Math.round((row * high) / rows)];
      const [right, bottom] = [Math.round(((col + 1) * wide) / cols), Math.round(((row + 1) * high) / rows)];
      return [left, top, right - left, bottom - top];
    };
  }

  /**
   * The row and column under a pointer, or null outside of the picture.
   * @param {{ clientX: number, clientY: number }} event
   */
  placeAt({ clientX, clientY }) {
    const { left, top, width, height } = this.canvas.getBoundingClientRect();
    const { rows, cols } = this.span;
    const row = Math.floor(((clientY - top) / height) * rows);
    const col = Math.floor(((clientX - left) / width) * cols);
    return row >= 0 && col >= 0 && row < rows && col < cols ? { row, col } : null;
  }
}

/**
 * A picture without its colours: as light as it was.
 * @param {HTMLImageElement} image
 */
function inGrey(image) {
  const canvas = element("canvas", { width: image.naturalWidth, height: image.naturalHeight });
  const context = contextOf(canvas);
  context.drawImage(image, 0, 0);
  const pixels = context.getImageData(0, 0, canvas.width, canvas.height);
  const { data } = pixels;
  for (let i = 0; i < data.length; i += 4) {
    const light = 0.2126 * data[i] + 0.7152 * data[i + 1] + 0.0722 * data[i + 2];
    data[i] = data[i + 1] = data[i + 2] = light;
  }
  context.putImageData(pixels, 0, 0);
  return canvas;
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {PatchSpan} span
 * @param {number} wide
 * @param {number} high
 * @param {number} ratio
 */
function drawLattice(context, { rows, cols }, wide, high, ratio) {
  context.fillStyle = "#ffffff40";
  const line = Math.max(1, Math.round(ratio / 2));
  for (let col = 1; col < cols; col++) context.fillRect(Math.round((col * wide) / cols), 0, line, high);
  for (let row = 1; row < rows; row++) context.fillRect(0, Math.round((row * high) / rows), wide, line);
}

/**
 * Two frames, one inside the other, so that one of them stands out on any ground.
 * @param {CanvasRenderingContext2D} context
 * @param {[number, number, number, number]} box
 * @param {number} ratio
 * @param {[string, string]} colours outer and inner
 * @param {number} width
 */
function frame(context, [x, y, w, h], ratio, colours, width) {
  const line = width * ratio;
  colours.forEach((colour, n) => {
    context.strokeStyle = colour;
    context.lineWidth = line;
    const inset = (n ? 0.5 : -0.5) * line;
    context.strokeRect(x + inset, y + inset, w - 2 * inset, h - 2 * inset);
  });
}

/**
 * The mark of a patch that receives far more than others.
 * @param {CanvasRenderingContext2D} context
 * @param {[number, number, number, number]} box
 * @param {number} ratio
 */
function ring(context, [x, y, w, h], ratio) {
  const radius = Math.max(2 * ratio, Math.min(w, h) * 0.28);
  for (const [colour, width] of /** @type {[string, number][]} */ ([
    ["#000000", 3.5],
    ["#ffffff", 1.5],
  ])) {
    context.strokeStyle = colour;
    context.lineWidth = width * ratio;
    context.beginPath();
    context.arc(x + w / 2, y + h / 2, radius, 0, 2 * Math.PI);
    context.stroke();
  }
}
