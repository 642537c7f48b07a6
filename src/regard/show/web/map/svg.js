// @ts-check
// A canvas that writes SVG: it understands as much of a canvas's language as our drawings speak.

import { contextOf } from "../common/dom.js";

/**
 * A canvas, a part of it, and where that part goes.
 * @typedef {[HTMLCanvasElement, number, number, number, number, number, number, number, number]} ImagePart
 */

const FAMILY = /^(\d+(?:\.\d+)?)px (.*)$/;

/**
 * From where a canvas sets a letter to its foot, in letters: not every program knows other baselines.
 * @type {Record<string, number>}
 */
const DOWN = { alphabetic: 0, middle: 0.35, top: 0.8 };
const LARGE = 4096; // pixels of an image, at most, to either side

/** @param {number} value */
const tidy = (value) => String(Math.round(value * 100) / 100);
/** What XML cannot hold: control characters, and halves of surrogate pairs that stand alone. */
const CONTROL = /[\u0000-\u0008\u000b\u000c\u000e-\u001f\ufffe\uffff]/g;
const ALONE = /[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g;
/** @param {string | number} text */
const escaped = (text) =>
  String(text)
    .replace(CONTROL, "\ufffd")
    .replace(ALONE, "\ufffd")
    .replace(/[&<>"']/g, (mark) => `&#${mark.charCodeAt(0)};`);
/** @param {Record<string, string | number>} attributes */
const listed = (attributes) =>
  Object.entries(attributes)
    .map(([name, value]) => `${name}="${escaped(value)}"`)
    .join(" ");

/**
 * @param {number} x
 * @param {number} y
 * @param {number} w
 * @param {number} h
 */
const place = (x, y, w, h) => ({ x: tidy(x), y: tidy(y), width: tidy(w), height: tidy(h) });

/**
 * Whole cells of a canvas, many pixels each: most programs smooth what they enlarge, whatever they are told.
 * @param {HTMLCanvasElement} whole
 * @param {number} sx
 * @param {number} sy
 * @param {number} sw
 * @param {number} sh
 * @param {number} x
 * @param {number} y
 * @param {number} w
 * @param {number} h
 * @returns {ImagePart}
 */
function enlarged(whole, sx, sy, sw, sh, x, y, w, h) {
  const [left, top] = [Math.floor(sx), Math.floor(sy)];
  const [cols, rows] = [Math.ceil(sx + sw) - left, Math.ceil(sy + sh) - top];
  const by = Math.max(1, Math.min(Math.ceil((2 * w) / sw), Math.floor(LARGE / Math.max(cols, rows))));
  const canvas = Object.assign(document.createElement("canvas"), { width: cols * by, height: rows * by });
  const context = contextOf(canvas);
  context.imageSmoothingEnabled = false;
  context.drawImage(whole, left, top, cols, rows, 0, 0, cols * by, rows * by);
  return [canvas, (sx - left) * by, (sy - top) * by, sw * by, sh * by, x, y, w, h];
}

export class SvgContext {
  /**
   * @param {number} width
   * @param {number} height
   */
  constructor(width, height) {
    this.width = width;
    this.height = height;
    /** @type {string[]} */
    this.parts = [];
    /** @type {string[]} */
    this.path = [];
    this.open = 0; // groups that are to be closed
    /** @type {{ kept: Partial<SvgContext>, open: number }[]} */
    this.stack = [];
    this.clips = 0;
    // As a canvas begins.
    this.fillStyle = "#000";
    this.strokeStyle = "#000";
    this.lineWidth = 1;
    this.font = "10px sans-serif";
    this.textAlign = "left";
    this.textBaseline = "alphabetic";
    this.imageSmoothingEnabled = true;
    /** @type {number[]} */
    this.dash = [];
  }

  save() {
    const { fillStyle, strokeStyle, lineWidth, font, textAlign, textBaseline, dash } = this;
    const kept = { fillStyle, strokeStyle, lineWidth, font, textAlign, textBaseline, dash };
    this.stack.push({ kept, open: this.open });
    this.open = 0;
  }

  restore() {
    this.parts.push("</g>".repeat(this.open));
    const saved = this.stack.pop();
    if (saved) Object.assign(this, saved.kept, { open: saved.open });
  }

  /** @param {string} attributes */
  group(attributes) {
    this.parts.push(`<g ${attributes}>`);
    this.open++;
  }

  /**
   * @param {number} x
   * @param {number} y
   */
  translate(x, y) {
    this.group(`transform="translate(${tidy(x)} ${tidy(y)})"`);
  }

  /** @param {number} angle */
  rotate(angle) {
    this.group(`transform="rotate(${tidy((angle * 180) / Math.PI)})"`);
  }

  /**
   * @param {number} x
   * @param {number} y
   */
  scale(x, y) {
    this.group(`transform="scale(${x} ${y})"`);
  }

  /** @param {number[]} dash */
  setLineDash(dash) {
    this.dash = dash;
  }

  beginPath() {
    this.path = [];
  }

  /**
   * @param {number} x
   * @param {number} y
   */
  moveTo(x, y) {
    this.path.push(`M${tidy(x)} ${tidy(y)}`);
  }

  /**
   * @param {number} x
   * @param {number} y
   */
  lineTo(x, y) {
    this.path.push(`L${tidy(x)} ${tidy(y)}`);
  }

  /**
   * @param {number} x
   * @param {number} y
   * @param {number} w
   * @param {number} h
   */
  rect(x, y, w, h) {
    this.path.push(`M${tidy(x)} ${tidy(y)}h${tidy(w)}v${tidy(h)}h${tidy(-w)}z`);
  }

  clip() {
    const name = `clip${++this.clips}`;
    this.parts.push(`<clipPath id="${name}"><path d="${this.path.join("")}"/></clipPath>`);
    this.group(`clip-path="url(#${name})"`);
  }

  /**
   * How lines are drawn now.
   * @returns {Record<string, string | number>}
   */
  get line() {
    const line = { fill: "none", stroke: this.strokeStyle, "stroke-width": this.lineWidth };
    return this.dash.length ? { ...line, "stroke-dasharray": this.dash.join(" ") } : line;
  }

  stroke() {
    this.parts.push(`<path ${listed({ d: this.path.join(""), ...this.line })}/>`);
  }

  /**
   * @param {number} x
   * @param {number} y
   * @param {number} w
   * @param {number} h
   */
  fillRect(x, y, w, h) {
    this.parts.push(`<rect ${listed({ ...place(x, y, w, h), fill: this.fillStyle })}/>`);
  }

  /**
   * @param {number} x
   * @param {number} y
   * @param {number} w
   * @param {number} h
   */
  strokeRect(x, y, w, h) {
    this.parts.push(`<rect ${listed({ ...place(x, y, w, h), ...this.line })}/>`);
  }

  /**
   * @param {string} text
   * @param {number} x
   * @param {number} y
   */
  fillText(text, x, y) {
    const [, size, family] = FAMILY.exec(this.font) ?? [null, "10", "sans-serif"];
    const attributes = {
      x: tidy(x),
      y: tidy(y + Number(size) * DOWN[this.textBaseline]),
      fill: this.fillStyle,
      "font-size": size,
      "font-family": family,
      "text-anchor": { center: "middle", right: "end" }[this.textAlign] ?? "start",
      "unicode-bidi": "isolate",
      "xml:space": "preserve",
    };
    const plain = text.replace(/[\u2066-\u2069]/g, ""); // the isolates that a canvas needs
    this.parts.push(`<text ${listed(attributes)}>${escaped(plain)}</text>`);
  }

  /**
   * Part of a canvas, as an image in a frame of its own.
   * @param {HTMLCanvasElement} whole
   * @param {[number, number, number, number, number, number, number, number]} where
   */
  drawImage(whole, ...where) {
    const [canvas, sx, sy, sw, sh, x, y, w, h] = this.imageSmoothingEnabled
      ? [whole, ...where]
      : enlarged(whole, ...where);
    const part = { viewBox: [sx, sy, sw, sh].map(tidy).join(" "), preserveAspectRatio: "none" };
    const frame = { ...place(x, y, w, h), ...part };
    const image = {
      width: canvas.width,
      height: canvas.height,
      href: canvas.toDataURL("image/png"),
      style: `image-rendering:${this.imageSmoothingEnabled ? "auto" : "pixelated"}`,
    };
    this.parts.push(`<svg ${listed(frame)}><image ${listed(image)}/></svg>`);
  }

  /** The whole picture as text. */
  toString() {
    const { width, height } = this;
    const size = { xmlns: "http://www.w3.org/2000/svg", width, height, viewBox: `0 0 ${width} ${height}` };
    return `<svg ${listed(size)}>\n${this.parts.join("\n")}\n</svg>\n`;
  }
}
