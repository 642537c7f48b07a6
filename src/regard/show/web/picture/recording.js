// @ts-check
// A canvas that remembers: it understands as much of a canvas's language as our drawings speak, and keeps a list of
// commands whose points are the picture's. `svg.js`, `pdf.js` and `bitmap.js` write the list.

import { parseColour } from "./colour.js";
import { fontFace, textWidth } from "./fonts.js";
import { cellPaths, pixelsOf } from "./pixels.js";

/**
 * From where a canvas sets a letter to its foot, in letters.
 * @type {Record<string, number>}
 */
const DOWN = { alphabetic: 0, middle: 0.35, top: 0.8 };
const ASCENT = 0.8; // of a letter above its foot, and
const DESCENT = 0.22; // below, in letters
/** @type {Matrix} */
const IDENTITY = [1, 0, 0, 1, 0, 0];

/** @typedef {Pick<Recording, "fillStyle" | "strokeStyle" | "lineWidth" | "font" | "textAlign" | "textBaseline" | "dash" | "matrix" | "shown">} DrawingState */

export class Recording {
  /** @param {MeasureText} [measure] */
  constructor(measure = textWidth) {
    this.measure = measure;
    /** @type {DrawingCommand[]} */
    this.commands = [];
    /** @type {Segment[]} */
    this.path = [];
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
    this.font = "10px sans-serif";
    this.textAlign = "left";
    this.textBaseline = "alphabetic";
    this.imageSmoothingEnabled = true;
    /** @type {number[]} */
    this.dash = [];
  }

  save() {
    const { fillStyle, strokeStyle, lineWidth, font, textAlign, textBaseline, dash, matrix, shown } = this;
    const state = { fillStyle, strokeStyle, lineWidth, font, textAlign, textBaseline, dash, matrix, shown };
    this.stack.push({ state, clips: this.clips });
    this.clips = 0;
  }

  restore() {
    const saved = this.stack.pop();
    if (!saved) return;
    for (; this.clips > 0; this.clips--) this.commands.push({ kind: "end" });
    Object.assign(this, saved.state, { clips: saved.clips });
  }

  /**
   * @param {number} x
   * @param {number} y
   */
  translate(x, y) {
    this.transform([1, 0, 0, 1, x, y]);
  }

  /** @param {number} angle */
  rotate(angle) {
    const [cos, sin] = [Math.cos(angle), Math.sin(angle)];
    this.transform([cos, sin, -sin, cos, 0, 0]);
  }

  /**
   * @param {number} x
   * @param {number} y
   */
  scale(x, y) {
    this.transform([x, 0, 0, y, 0, 0]);
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
    return { width: this.measure(text, this.font) };
  }

  beginPath() {
    this.path = [];
  }

  /**
   * @param {number} x
   * @param {number} y
   */
  moveTo(x, y) {
    this.path.push(["M", ...this.point(x, y)]);
  }

  /**
   * @param {number} x
   * @param {number} y
   */
  lineTo(x, y) {
    this.path.push(["L", ...this.point(x, y)]);
  }

  /**
   * @param {number} x1
   * @param {number} y1
   * @param {number} x2
   * @param {number} y2
   * @param {number} x
   * @param {number} y
   */
  bezierCurveTo(x1, y1, x2, y2, x, y) {
    this.path.push(["C", ...this.point(x1, y1), ...this.point(x2, y2), ...this.point(x, y)]);
  }

  closePath() {
    this.path.push(["Z"]);
  }

  /**
   * @param {number} x
   * @param {number} y
   * @param {number} w
   * @param {number} h
   */
  rect(x, y, w, h) {
    this.moveTo(x, y);
    this.lineTo(x + w, y);
    this.lineTo(x + w, y + h);
    this.lineTo(x, y + h);
    this.closePath();
  }

  clip() {
    this.commands.push({ kind: "clip", path: this.path });
    this.clips++;
    this.shown = within(extentOf(this.path), this.shown);
  }

  fill() {
    const colour = parseColour(this.fillStyle);
    if (!colour[3] || !this.path.length) return;
    this.commands.push({ kind: "fill", path: this.path, colour });
    if (!isGround(colour)) this.see(extentOf(this.path));
  }

  stroke() {
    const colour = parseColour(this.strokeStyle);
    if (!colour[3] || !this.path.length) return;
    const scale = sizeOf(this.matrix);
    const dash = this.dash.map((length) => length * scale);
    const width = this.lineWidth * scale;
    this.commands.push({ kind: "stroke", path: this.path, colour, width, dash });
    this.see(grown(extentOf(this.path), width / 2));
  }

  /**
   * @param {number} x
   * @param {number} y
   * @param {number} w
   * @param {number} h
   */
  fillRect(x, y, w, h) {
    this.beginPath();
    this.rect(x, y, w, h);
    this.fill();
  }

  /**
   * @param {number} x
   * @param {number} y
   * @param {number} w
   * @param {number} h
   */
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
    const colour = parseColour(this.fillStyle);
    if (!plain || !colour[3]) return;
    const font = fontFace(this.font);
    const wide = width ?? this.measure(plain, this.font);
    const align = /** @type {TextCommand["align"]} */ (this.textAlign);
    const left = x - { left: 0, center: wide / 2, right: wide }[align];
    const foot = y + font.size * DOWN[this.textBaseline];
    const matrix = product(this.matrix, [1, 0, 0, 1, left, foot]);
    this.commands.push({ kind: "text", text: plain, font, colour, matrix, width: wide, align });
    const box = {
      left,
      right: left + wide,
      top: foot - ASCENT * font.size,
      bottom: foot + DESCENT * font.size,
    };
    this.see(extentOf(this.corners(box)));
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
    this.see(extentOf(this.corners({ left: x, top: y, right: x + w, bottom: y + h })));
    const smooth = this.imageSmoothingEnabled;
    const at = { x, y, across: w / image.width, down: h / image.height };
    const cells = smooth ? null : cellPaths(image, at);
    if (!cells) {
      const matrix = product(this.matrix, [w, 0, 0, h, x, y]);
      this.commands.push({ kind: "image", image, matrix, smooth });
      return;
    }
    for (const { rectangles, colour } of cells) {
      this.beginPath();
      for (const [left, top, wide, high] of rectangles) this.rect(left, top, wide, high);
      this.commands.push({ kind: "fill", path: this.path, colour });
    }
  }

  /**
   * Draws all of another recording, moved.
   * @param {Recording} other
   * @param {number} dx
   * @param {number} dy
   */
  place({ commands, bounds }, dx, dy) {
    for (const command of commands) this.commands.push(moved(command, dx, dy));
    if (!bounds) return;
    const { left, top, right, bottom } = bounds;
    this.see({ left: left + dx, right: right + dx, top: top + dy, bottom: bottom + dy });
  }

  /**
   * The picture of what was drawn, trimmed to what is seen, with a margin.
   * @param {string} title
   * @param {number} margin
   * @returns {Picture}
   */
  picture(title, margin) {
    const { left, top, right, bottom } = this.bounds ?? { left: 0, top: 0, right: 1, bottom: 1 };
    const [dx, dy] = [margin - left, margin - top];
    return {
      title,
      width: Math.ceil(right - left + 2 * margin),
      height: Math.ceil(bottom - top + 2 * margin),
      commands: this.commands.map((command) => moved(command, dx, dy)),
    };
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
   * @param {Rectangle} box
   * @returns {Segment[]}
   */
  corners({ left, top, right, bottom }) {
    const points = [
      this.point(left, top),
      this.point(right, top),
      this.point(right, bottom),
      this.point(left, bottom),
    ];
    return points.map((point) => /** @type {Segment} */ (["L", ...point]));
  }

  /**
   * Counts a part as seen, as far as it is not clipped.
   * @param {Rectangle} part
   */
  see(part) {
    const { left, top, right, bottom } = within(part, this.shown);
    if (!(right > left) || !(bottom > top)) return;
    const old = this.bounds;
    this.bounds = old
      ? {
          left: Math.min(old.left, left),
          top: Math.min(old.top, top),
          right: Math.max(old.right, right),
          bottom: Math.max(old.bottom, bottom),
        }
      : { left, top, right, bottom };
  }
}

/**
 * White on white paper is nothing to see.
 * @param {Colour} colour
 */
function isGround([red, green, blue]) {
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
 * @param {Segment[]} path
 * @returns {Rectangle}
 */
function extentOf(path) {
  const [xs, ys] = [
    [Infinity, -Infinity],
    [Infinity, -Infinity],
  ];
  for (const [, ...places] of path) {
    places.forEach((place, n) => {
      const ends = n % 2 ? ys : xs;
      ends[0] = Math.min(ends[0], place);
      ends[1] = Math.max(ends[1], place);
    });
  }
  return { left: xs[0], right: xs[1], top: ys[0], bottom: ys[1] };
}

/**
 * @param {Rectangle} box
 * @param {number} by
 * @returns {Rectangle}
 */
function grown({ left, top, right, bottom }, by) {
  return { left: left - by, top: top - by, right: right + by, bottom: bottom + by };
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

/**
 * A command, moved.
 * @template {DrawingCommand} C
 * @param {C} command
 * @param {number} dx
 * @param {number} dy
 * @returns {C}
 */
function moved(command, dx, dy) {
  if (command.kind === "end") return command;
  if ("matrix" in command) {
    const [a, b, c, d, e, f] = command.matrix;
    return { ...command, matrix: [a, b, c, d, e + dx, f + dy] };
  }
  const path = command.path.map(([letter, ...places]) => [
    letter,
    ...places.map((place, n) => place + (n % 2 ? dy : dx)),
  ]);
  return { ...command, path: /** @type {Segment[]} */ (path) };
}
