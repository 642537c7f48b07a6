// @ts-check
// Fonts as a canvas names them, and how wide a text is in one.

import { coreFont, coreLetter } from "./core_fonts.js";

const FONT = /^(italic )?(\d+ |bold )?(\d+(?:\.\d+)?)px (.*)$/;
const OTHER = 600; // thousandths of a letter, of one that no usual font has
/** The fonts of a figure: those of every PDF reader, and what has the same widths elsewhere. */
export const PAPER_SANS = 'Helvetica, Arial, "Liberation Sans", sans-serif';
/** @type {OffscreenCanvasRenderingContext2D | null} */
let ruler = null;

/**
 * What a canvas's font is.
 * @param {string} font as in "italic 600 12px Arial, sans-serif"
 * @returns {PrintFont}
 */
export function fontFace(font) {
  const [, italic, weight, size, family] = FONT.exec(font) ?? [null, "", "", "10", "sans-serif"];
  return {
    size: Number(size),
    family: familyOf(family),
    bold: weight === "bold " || Number(weight ?? 0) >= 600,
    italic: Boolean(italic),
  };
}

/**
 * @param {string} names
 * @returns {PrintFont["family"]}
 */
function familyOf(names) {
  if (/mono|courier|consolas|menlo/i.test(names)) return "mono";
  return /(?<!sans-)serif|times|georgia/i.test(names) ? "serif" : "sans";
}

/**
 * Pixels that a text takes: as a canvas measures it, or where there is none by the widths of usual fonts.
 * @type {MeasureText}
 */
export function textWidth(text, font) {
  if (typeof OffscreenCanvas === "undefined") return usualWidth(text, font);
  ruler ??= new OffscreenCanvas(1, 1).getContext("2d");
  if (!ruler) return usualWidth(text, font);
  ruler.font = font;
  return ruler.measureText(text).width;
}

/**
 * @param {string} text
 * @param {string} font
 */
function usualWidth(text, font) {
  const face = fontFace(font);
  const name = coreFont(face);
  const widths = [...text].map((letter) => coreLetter(letter, name)?.width ?? OTHER);
  return (widths.reduce((sum, width) => sum + width, 0) * face.size) / 1000;
}
