// @ts-check
// Fonts as a canvas names them, and how wide a text is in one.

const FONT = /^(italic )?(\d+ |bold )?(\d+(?:\.\d+)?)px (.*)$/;
/** The fonts of a figure: what most systems have, in faces of the same widths. */
export const PAPER_SANS = 'Helvetica, Arial, "Liberation Sans", sans-serif';
const PAPER_SERIF = 'Times, "Times New Roman", "Liberation Serif", serif';
const PAPER_MONO = '"Courier New", "Liberation Mono", Courier, monospace';
/** @type {OffscreenCanvasRenderingContext2D | null} */
let ruler = null;

/**
 * A canvas's font as attributes of SVG, with its size in pixels.
 * @param {string} font as in "italic 600 12px Arial, sans-serif"
 */
export function fontFace(font) {
  const [, italic, weight, size, family] = FONT.exec(font) ?? [null, "", "", "10", "sans-serif"];
  return {
    size: Number(size),
    "font-family": paperFamily(family),
    "font-weight": weight === "bold " || Number(weight ?? 0) >= 600 ? "bold" : null,
    "font-style": italic ? "italic" : null,
  };
}

/** @param {string} names */
function paperFamily(names) {
  if (/mono|courier|consolas|menlo/i.test(names)) return PAPER_MONO;
  return /(?<!sans-)serif|times|georgia/i.test(names) ? PAPER_SERIF : PAPER_SANS;
}

/**
 * What a text takes.
 * @param {string} text
 * @param {string} font
 */
export function measure(text, font) {
  ruler ??= new OffscreenCanvas(1, 1).getContext("2d");
  if (!ruler) throw new Error("This browser cannot draw on a canvas.");
  ruler.font = font;
  return ruler.measureText(text);
}
