// @ts-check
// A picture that stands on its own, for a file: a heading, what it is of, what a view of the page shows without its
// controls, and what its colours mean.

import { css, traceHatch } from "../parts/colours.js";
import { drawElement } from "./elements.js";
import { PAPER_SANS } from "./fonts.js";
import { onPaper } from "./paper.js";
import { SvgDrawing } from "./svg_drawing.js";

const MARGIN = 12;
const GAP = 14; // between the parts of a figure
const NARROWEST = 400; // pixels that the words take at least
const [BAR, HIGH, STEPS] = [220, 9, 64]; // the colour bar: pixels, and colours
const SWATCH = { width: 22, height: 12 };
/** The inks of a figure. */
const INK = {
  strong: "#1d2026",
  soft: "#555a64",
  warning: "#9b1c31",
  hatch: "#c9c5ba",
  sunken: "#f7f6f3",
};
/** How each kind of words is written: the pixels above it, and from one line to the next. */
const WORDS = {
  heading: { font: `bold 15px ${PAPER_SANS}`, ink: INK.strong, above: 0, line: 20 },
  line: { font: `12px ${PAPER_SANS}`, ink: INK.soft, above: 1, line: 16 },
  warning: { font: `12px ${PAPER_SANS}`, ink: INK.warning, above: 1, line: 16 },
  note: { font: `11px ${PAPER_SANS}`, ink: INK.soft, above: 2, line: 15 },
};

/**
 * Composes the figure; `draw` draws what it is about, wherever it likes.
 * @param {FigureWords} words
 * @param {FigureKeys} keys
 * @param {(context: SvgDrawing) => void} draw
 * @returns {Picture}
 */
export function composeFigure(words, keys, draw) {
  const inner = new SvgDrawing();
  draw(inner);
  const box = inner.bounds ?? { left: 0, top: 0, right: 0, bottom: 0 };
  const figure = new SvgDrawing();
  const width = Math.max(NARROWEST, box.right - box.left);
  let y = writeLines(figure, words.heading, WORDS.heading, width, 0);
  for (const line of words.lines) y = writeLines(figure, line, WORDS.line, width, y);
  if (words.warning) y = writeLines(figure, words.warning, WORDS.warning, width, y);
  y += GAP;
  figure.place(inner, -box.left, y - box.top);
  y = drawKeys(figure, keys, width, y + box.bottom - box.top + GAP);
  for (const note of words.notes) y = writeLines(figure, note, WORDS.note, width, y);
  return figure.picture([words.heading, ...words.lines].join(" "), MARGIN);
}

/**
 * Writes a sentence in lines that fit; returns where the next begins.
 * @param {SvgDrawing} context
 * @param {string} text
 * @param {typeof WORDS.note} how
 * @param {number} width
 * @param {number} y
 */
function writeLines(context, text, { font, ink, above, line }, width, y) {
  Object.assign(context, { font, fillStyle: ink, textAlign: "left", textBaseline: "top" });
  const lines = text ? wrapLines(text, (part) => context.measureText(part).width, width) : [];
  lines.forEach((part, n) => context.fillText(part, 0, y + above + n * line));
  return y + above + lines.length * line;
}

/**
 * A sentence in lines that fit; a word that is too long for a line is broken.
 * @param {string} text
 * @param {(text: string) => number} measure
 * @param {number} width
 */
export function wrapLines(text, measure, width) {
  const lines = [""];
  for (const word of text.split(/\s+/)) {
    const longer = lines[lines.length - 1] ? `${lines[lines.length - 1]} ${word}` : word;
    if (measure(longer) <= width) {
      lines[lines.length - 1] = longer;
      continue;
    }
    if (lines[lines.length - 1]) lines.push("");
    for (const letter of word) {
      if (measure(lines[lines.length - 1] + letter) > width && lines[lines.length - 1]) lines.push("");
      lines[lines.length - 1] += letter;
    }
  }
  return lines;
}

/**
 * The colour bar, and swatches of what else is in the picture; returns where the next part begins.
 * @param {SvgDrawing} context
 * @param {FigureKeys} keys
 * @param {number} width
 * @param {number} y
 */
function drawKeys(context, { bar, hatch, dashed }, width, y) {
  if (!bar && !hatch && !dashed) return y - GAP + 4;
  let [x, bottom] = [0, y + SWATCH.height + 6];
  if (bar) {
    drawBar(context, bar, y);
    [x, bottom] = [BAR + 24, y + HIGH + 22];
  }
  for (const [name, draw] of /** @type {const} */ ([
    [hatch, drawHatch],
    [dashed, drawDashes],
  ])) {
    if (!name) continue;
    context.font = WORDS.note.font;
    const room = SWATCH.width + 6 + context.measureText(name).width;
    if (x > 0 && x + room > width) [x, y, bottom] = [0, bottom, bottom + SWATCH.height + 6];
    draw(context, x, y - 1);
    Object.assign(context, {
      font: WORDS.note.font,
      fillStyle: INK.soft,
      textAlign: "left",
      textBaseline: "top",
    });
    context.fillText(name, x + SWATCH.width + 6, y);
    x += room + 18;
  }
  return bottom;
}

/**
 * @param {SvgDrawing} context
 * @param {NonNullable<FigureKeys["bar"]>} bar
 * @param {number} y
 */
function drawBar(context, { scale, marks }, y) {
  for (let step = 0; step < STEPS; step++) {
    context.fillStyle = css(step / (STEPS - 1), "light", scale.signed);
    const last = step === STEPS - 1;
    context.fillRect((step * BAR) / STEPS, y, BAR / STEPS + (last ? 0 : 0.4), HIGH);
  }
  Object.assign(context, { strokeStyle: INK.hatch, lineWidth: 0.5 });
  context.strokeRect(0, y, BAR, HIGH);
  Object.assign(context, { font: WORDS.note.font, fillStyle: INK.soft, textBaseline: "top" });
  marks.forEach(([t, text], n) => {
    context.textAlign = n === 0 ? "left" : n === marks.length - 1 ? "right" : "center";
    context.fillText(text, t * BAR, y + HIGH + 4);
  });
}

/**
 * Thin slanted lines, as cells have them that the mask hides.
 * @param {SvgDrawing} context
 * @param {number} x
 * @param {number} y
 */
function drawHatch(context, x, y) {
  const { width, height } = SWATCH;
  context.fillStyle = INK.sunken;
  context.fillRect(x, y, width, height);
  context.beginPath();
  traceHatch(context, { left: x, top: y, width, height }, 7);
  Object.assign(context, { strokeStyle: INK.hatch, lineWidth: 1 });
  context.stroke();
  context.strokeRect(x, y, width, height);
}

/**
 * @param {SvgDrawing} context
 * @param {number} x
 * @param {number} y
 */
function drawDashes(context, x, y) {
  Object.assign(context, { strokeStyle: "#b8430f", lineWidth: 1 });
  context.setLineDash([6, 4]);
  context.beginPath();
  context.moveTo(x, y + SWATCH.height / 2);
  context.lineTo(x + SWATCH.width, y + SWATCH.height / 2);
  context.stroke();
  context.setLineDash([]);
}

const MOST_HIGH = 6000; // pixels: of a longer view, such as a long text, the part in sight is drawn
/** @type {FigureKeys} */
const NO_KEYS = { bar: null, hatch: "", dashed: "" };

/**
 * The figure of one or more elements, which stay where they are to each other.
 * @param {Element[]} elements
 * @param {FigureWords} words
 * @param {FigureKeys} [keys]
 * @returns {Picture}
 */
export function viewFigure(elements, words, keys = NO_KEYS) {
  return onPaper(() => {
    const shown = elements.filter((element) => element.getClientRects().length > 0);
    const boxes = shown.map((element) => element.getBoundingClientRect());
    const high = Math.max(...boxes.map(({ bottom }) => bottom)) - Math.min(...boxes.map(({ top }) => top));
    const part = high > MOST_HIGH ? { left: 0, top: 0, right: innerWidth, bottom: innerHeight } : null;
    const notes = part ? [...words.notes, "The part that was in sight."] : words.notes;
    return composeFigure({ ...words, notes }, keys, (context) => {
      for (const element of shown) drawElement(context, element, part);
    });
  });
}
