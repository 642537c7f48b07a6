// @ts-check
// A view of the page as a figure: what it shows, without its controls, under a heading of its own.

import { drawElement } from "./elements.js";
import { composeFigure } from "./figure.js";
import { onPaper } from "./paper.js";

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
