// @ts-check
// A canvas that writes SVG, with real text: it understands as much of a canvas's language as our drawings speak.

import { parseColour } from "./colour.js";
import { fontFace, measure } from "./fonts.js";
import { cellPaths, encodeImage, enlargement, pixelsOf } from "./pixels.js";
import { escaped, listed, paint, tidy } from "./svg_markup.js";

/**
 * From where a canvas sets a letter to its foot, in letters.
 * @type {Record<string, number>}
 */
const DOWN = { alphabetic: 0, middle: 0.35, top: 0.8 };
const ASCENT = 0.8; // of a letter above its foot, and
const DESCENT = 0.22; // below, in letters
/** @type {Matrix} */
const IDENTITY = [1, 0, 0, 1, 0, 0];
const NOWHERE = { left: Infinity, top: Infinity, right: -Infinity, bottom: -Infinity };
let clipCount = 0; // the names of clips differ in all drawings, since one can be part of another

/** @typedef {Pick<SvgDrawing, "fillStyle" | "strokeStyle" | "lineWidth" | "globalAlpha" | "font" | "textAlign" | "textBaseline" | "dash" | "matrix" | "shown">} DrawingState */

export class SvgDrawing {
  constructor() {
    /** @type {string[]} */
    this.lines = [];
    this.path = "";
    /** @type {Rectangle} */
    this.extent = NOWHERE; // of the path
    /** @type {{ state: DrawingState, clips: number }[]} */
    this.stack = [];
    this.clips = 0; // that are to be ended
    /** @type {Rectangle | null} */
    this.bounds = null; // of what is seen so far
    // As a canvas begins.
    /** @type {Matrix} */
    this.matrix = IDENTITY;
    /** @type {Rectangle} */
    this.shown = { left: -Infinity, top: -Infinity, right: Infinity, bottom: Infinity }; // what clips leave
    this.fillStyle = "#000";
    this.strokeStyle = "#000";
    this.lineWidth = 1;
    this.globalAlpha = 1;
    this.font = "10px sans-serif";
    this.textAlign = "left";
    this.textBaseline = "alphabetic";
    this.imageSmoothingEnabled = true;
    /** @type {number[]} */
    this.dash = [];
  }

  save() {
    const { fillStyle, strokeStyle, lineWidth, globalAlpha, dash, matrix, shown } = this;
    const { font, textAlign, textBaseline } = this;
    const ink = { fillStyle, strokeStyle, lineWidth, globalAlpha, dash };
    const state = { ...ink, matrix, shown, font, textAlign, textBaseline };
    this.stack.push({ state, clips: this.clips });
    this.clips = 0;
  }

  restore() {
    const saved = this.stack.pop();
    if (!saved) return;
    for (; this.clips > 0; this.clips--) this.lines.push("</g>");
    Object.assign(this, saved.state, { clips: saved.clips });
  }

  /** @type {CanvasRenderingContext2D["translate"]} */
  translate(x, y) {
    this.transform([1, 0, 0, 1, x, y]);
  }

  /** @type {CanvasRenderingContext2D["rotate"]} */
  rotate(angle) {
    const [cos, sin] = [Math.cos(angle), Math.sin(angle)];
    this.transform([cos, sin, -sin, cos, 0, 0]);
  }

  /** @param {Matrix} by */
  transform(by) {
    this.matrix = product(this.matrix, by);
  }

  /** @param {number[]} dash */
  setLineDash(dash) {
    this.dash = dash;
  }

  /** @param {string} text */
  measureText(text) {
    return { width: measure(text, this.font).width };
  }

  beginPath() {
    [this.path, this.extent] = ["", NOWHERE];
  }

  /**
   * Adds to the path: a letter of SVG's and its points.
   * @param {string} letter
   * @param {Point[]} points
   */
  addSegment(letter, ...points) {
    const places = points.map(([x, y]) => this.point(x, y));
    this.path += letter + places.flat().map(tidy).join(" ");
    this.extent = places.reduce(around, this.extent);
  }

  /** @type {CanvasRenderingContext2D["moveTo"]} */
  moveTo(x, y) {
    this.addSegment("M", [x, y]);
  }

  /** @type {CanvasRenderingContext2D["lineTo"]} */
  lineTo(x, y) {
    this.addSegment("L", [x, y]);
  }

  /** @type {CanvasRenderingContext2D["rect"]} */
  rect(x, y, w, h) {
    this.moveTo(x, y);
    this.lineTo(x + w, y);
    this.lineTo(x + w, y + h);
    this.lineTo(x, y + h);
    this.addSegment("Z");
  }

  clip() {
    const id = `clip${clipCount++}`;
    this.lines.push(`<clipPath id="${id}"><path d="${this.path}"/></clipPath><g clip-path="url(#${id})">`);
    this.clips++;
    this.shown = within(this.extent, this.shown);
  }

  /**
   * A colour as attributes, as opaque as all that is drawn now.
   * @param {"fill" | "stroke"} name
   * @param {string} colour
   * @param {number} [opacity]
   */
  ink(name, colour, opacity = 1) {
    if (!isSeen(colour)) return { [name]: "none" };
    const [red, green, blue, alpha] = parseColour(colour);
    return paint(name, [red, green, blue, alpha * opacity * this.globalAlpha]);
  }

  fill() {
    if (!isSeen(this.fillStyle) || !this.path) return;
    this.lines.push(`<path${listed({ d: this.path, ...this.ink("fill", this.fillStyle) })}/>`);
    if (!isGround(this.fillStyle)) this.see(this.extent);
  }

  stroke() {
    if (!isSeen(this.strokeStyle) || !this.path) return;
    const scale = sizeOf(this.matrix);
    const width = this.lineWidth * scale;
    const attributes = {
      d: this.path,
      fill: "none",
      ...this.ink("stroke", this.strokeStyle),
      "stroke-width": tidy(width),
      "stroke-dasharray": this.dash.length ? this.dash.map((length) => tidy(length * scale)).join(" ") : null,
    };
    this.lines.push(`<path${listed(attributes)}/>`);
    const { left, top, right, bottom } = this.extent;
    const half = width / 2;
    this.see({ left: left - half, top: top - half, right: right + half, bottom: bottom + half });
  }

  /** @type {CanvasRenderingContext2D["fillRect"]} */
  fillRect(x, y, w, h) {
    this.beginPath();
    this.rect(x, y, w, h);
    this.fill();
  }

  /**
   * A rectangle with round corners, in the picture's own pixels: filled, or stroked with a line.
   * @param {{ x: number, y: number, width: number, height: number }} box
   * @param {number} radius
   * @param {string} colour
   * @param {number} [line] its width; 0 to fill
   */
  addRectangle({ x, y, width, height }, radius, colour, line = 0) {
    if (!isSeen(colour)) return;
    const round = Math.min(radius, width / 2, height / 2);
    const attributes = {
      ...{ x: tidy(x), y: tidy(y), width: tidy(width), height: tidy(height) },
      rx: round < 0.5 ? null : tidy(round),
      ...(line
        ? { fill: "none", ...this.ink("stroke", colour), "stroke-width": tidy(line) }
        : this.ink("fill", colour)),
    };
    const half = line / 2;
    const box = { left: x - half, top: y - half, right: x + width + half, bottom: y + height + half };
    this.addShape("rect", attributes, !line && isGround(colour) ? null : box);
  }

  /** @type {CanvasRenderingContext2D["strokeRect"]} */
  strokeRect(x, y, w, h) {
    this.beginPath();
    this.rect(x, y, w, h);
    this.stroke();
  }

  /**
   * @param {string} text
   * @param {number} x
   * @param {number} y
   * @param {number} [width] that it takes; it is measured if it is not known
   */
  fillText(text, x, y, width) {
    const plain = text.replace(/[\u2066-\u2069]/g, ""); // the isolates that a canvas needs
    if (!plain || !isSeen(this.fillStyle)) return;
    const { size, ...face } = fontFace(this.font);
    const wide = width ?? measure(plain, this.font).width;
    const align = /** @type {"left" | "center" | "right"} */ (this.textAlign);
    const left = x - { left: 0, center: wide / 2, right: wide }[align];
    const foot = y + size * DOWN[this.textBaseline];
    const [a, b, c, d, e, f] = product(this.matrix, [1, 0, 0, 1, x, foot]);
    const isUpright = a === 1 && b === 0 && c === 0 && d === 1;
    const attributes = {
      ...(isUpright
        ? { x: tidy(e), y: tidy(f) }
        : { transform: `matrix(${[a, b, c, d, e, f].map(tidy).join(" ")})` }),
      ...this.ink("fill", this.fillStyle),
      "font-size": tidy(size),
      ...face,
      "text-anchor": { left: null, center: "middle", right: "end" }[align],
      "unicode-bidi": "isolate",
      "xml:space": "preserve",
    };
    this.lines.push(`<text${listed(attributes)}>${escaped(plain)}</text>`);
    this.seeBox({ left, right: left + wide, top: foot - ASCENT * size, bottom: foot + DESCENT * size });
  }

  /**
   * Part of a canvas.
   * @param {HTMLCanvasElement} canvas
   * @param {[number, number, number, number, number, number, number, number]} where
   */
  drawImage(canvas, ...where) {
    const [sx, sy, sw, sh, x, y, w, h] = where;
    const part = pixelsOf(canvas, { left: sx, top: sy, right: sx + sw, bottom: sy + sh });
    const [across, down] = [w / sw, h / sh]; // of a pixel
    this.save();
    this.beginPath();
    this.rect(x, y, w, h);
    this.clip();
    const [left, top] = [x - (sx - part.left) * across, y - (sy - part.top) * down];
    this.drawPixels(part.image, left, top, part.image.width * across, part.image.height * down);
    this.restore();
  }

  /**
   * Pixels: cells that are few as rectangles, others as an image.
   * @param {PixelImage} image
   * @param {number} x
   * @param {number} y
   * @param {number} w
   * @param {number} h
   */
  drawPixels(image, x, y, w, h) {
    this.seeBox({ left: x, top: y, right: x + w, bottom: y + h });
    const isSmooth = this.imageSmoothingEnabled;
    const at = { x, y, across: w / image.width, down: h / image.height };
    const cells = isSmooth ? null : cellPaths(image, at);
    for (const { rectangles, colour } of cells ?? []) {
      this.beginPath();
      for (const [left, top, wide, high] of rectangles) this.rect(left, top, wide, high);
      this.lines.push(`<path${listed({ d: this.path, ...paint("fill", colour) })}/>`);
    }
    if (cells) return;
    const [a, b, c, d, e, f] = product(this.matrix, [w, 0, 0, h, x, y]);
    // Most programs smooth what they enlarge, whatever they are told.
    const by = isSmooth ? 1 : enlargement(image, Math.hypot(a, b));
    const [width, height] = [by * image.width, by * image.height];
    const turned = [a / width, b / width, c / height, d / height].map((value) =>
      Number(value.toPrecision(6)),
    );
    const attributes = {
      width,
      height,
      transform: `matrix(${turned.join(" ")} ${tidy(e)} ${tidy(f)})`,
      href: encodeImage(image, by),
      "image-rendering": isSmooth ? "auto" : "pixelated",
    };
    this.lines.push(`<image${listed(attributes)}/>`);
  }

  /**
   * A shape of SVG whose points are the picture's, unlike those of a path.
   * @param {string} name
   * @param {Record<string, string | number | null>} attributes
   * @param {Rectangle | null} box that it takes; null if there is nothing to see of it
   */
  addShape(name, attributes, box) {
    this.lines.push(`<${name}${listed(attributes)}/>`);
    if (box) this.see(box);
  }

  /**
   * Draws all of another drawing, moved.
   * @param {SvgDrawing} other
   * @param {number} dx
   * @param {number} dy
   */
  place({ lines, bounds }, dx, dy) {
    this.lines.push(`<g transform="translate(${tidy(dx)} ${tidy(dy)})">`, ...lines, "</g>");
    if (!bounds) return;
    const { left, top, right, bottom } = bounds;
    this.see({ left: left + dx, right: right + dx, top: top + dy, bottom: bottom + dy });
  }

  /**
   * The picture of what was drawn, on white, trimmed to what is seen, with a margin.
   * @param {string} title
   * @param {number} margin
   * @returns {Picture}
   */
  picture(title, margin) {
    const { left, top, right, bottom } = this.bounds ?? { left: 0, top: 0, right: 1, bottom: 1 };
    const [width, height] = [Math.ceil(right - left + 2 * margin), Math.ceil(bottom - top + 2 * margin)];
    const viewBox = [left - margin, top - margin, width, height].map(tidy).join(" ");
    const ground = { x: tidy(left - margin), y: tidy(top - margin), width, height, fill: "#fff" };
    const svg = [
      `<svg${listed({ xmlns: "http://www.w3.org/2000/svg", width, height, viewBox })}>`,
      `<title>${escaped(title)}</title>`,
      `<rect${listed(ground)}/>`,
      ...this.lines,
      "</svg>\n",
    ].join("\n");
    return { width, height, svg };
  }

  /**
   * A point of the drawing in the picture.
   * @param {number} x
   * @param {number} y
   * @returns {Point}
   */
  point(x, y) {
    const [a, b, c, d, e, f] = this.matrix;
    return [a * x + c * y + e, b * x + d * y + f];
  }

  /**
   * Counts a rectangle of the drawing as seen.
   * @param {Rectangle} box
   */
  seeBox({ left, top, right, bottom }) {
    const corners = [
      this.point(left, top),
      this.point(right, top),
      this.point(right, bottom),
      this.point(left, bottom),
    ];
    this.see(corners.reduce(around, NOWHERE));
  }

  /**
   * Counts a part of the picture as seen, as far as it is not clipped.
   * @param {Rectangle} part
   */
  see(part) {
    const { left, top, right, bottom } = within(part, this.shown);
    if (!(right > left) || !(bottom > top)) return;
    this.bounds = around(around(this.bounds ?? NOWHERE, [left, top]), [right, bottom]);
  }
}

/** @param {string} colour */
function isSeen(colour) {
  return colour !== "none" && parseColour(colour)[3] > 0;
}

/**
 * White on white paper is nothing to see.
 * @param {string} colour
 */
function isGround(colour) {
  const [red, green, blue] = parseColour(colour);
  return red === 255 && green === 255 && blue === 255;
}

/**
 * First `b`, then `a`.
 * @param {Matrix} a
 * @param {Matrix} b
 * @returns {Matrix}
 */
function product(a, b) {
  return [
    a[0] * b[0] + a[2] * b[1],
    a[1] * b[0] + a[3] * b[1],
    a[0] * b[2] + a[2] * b[3],
    a[1] * b[2] + a[3] * b[3],
    a[0] * b[4] + a[2] * b[5] + a[4],
    a[1] * b[4] + a[3] * b[5] + a[5],
  ];
}

/**
 * By how much lengths grow.
 * @param {Matrix} matrix
 */
function sizeOf([a, b, c, d]) {
  return Math.sqrt(Math.abs(a * d - b * c));
}

/**
 * The rectangle with a point in it.
 * @param {Rectangle} box
 * @param {Point} point
 * @returns {Rectangle}
 */
function around({ left, top, right, bottom }, [x, y]) {
  return {
    left: Math.min(left, x),
    top: Math.min(top, y),
    right: Math.max(right, x),
    bottom: Math.max(bottom, y),
  };
}

/**
 * What two rectangles share.
 * @param {Rectangle} a
 * @param {Rectangle} b
 * @returns {Rectangle}
 */
function within(a, b) {
  return {
    left: Math.max(a.left, b.left),
    top: Math.max(a.top, b.top),
    right: Math.min(a.right, b.right),
    bottom: Math.min(a.bottom, b.bottom),
  };
}
