// @ts-check
// What the Text view saves: the shaded text as a figure, and the weights of the chosen token.

import { marksOf } from "../map/legend.js";
import { makeScale } from "../parts/colours.js";
import { quantityTitle, spell } from "../data/quantity.js";
import { visible } from "../data/tokens.js";
import { viewFigure } from "../picture/figure.js";
import { headWords, textWords } from "../picture/words.js";
import { scopeName } from "./scope.js";

/**
 * The figure of what is shown.
 * @param {import("./text.js").TextView} view
 */
export async function textFigure(view) {
  const { app, state, layer, quantity, shaded, other, page } = view;
  const { text, head } = state;
  const words =
    state.scope === "head"
      ? await headWords(app, { text, layer: layer.key, head })
      : textWords(app, scopeName(state, layer, quantity.shade === "logit" ? "sum" : "mean"), text);
  words.notes = shaded ? [view.said.textContent ?? ""] : ["No token is selected, so no token is shaded."];
  if (other) words.notes.push(`Vermilion: layer ${other.layer.key}, head ${other.head}.`);
  if (shaded && page.patches.size)
    words.notes.push(
      `In the picture colours go from clear over amber to red, for ${spell(quantity, shaded.top)}.`,
    );
  if (view.outliers.size) words.notes.push("A ring marks a patch that receives far more than others.");
  return viewFigure([view.sheet], words, {
    bar: shaded && page.patches.size < layer.cols / 2 ? barOf(shaded, state, quantity) : null,
    hatch: "",
    dashed: "",
  });
}

/**
 * @param {Shaded} shaded
 * @param {State} state
 * @param {Quantity} quantity
 * @returns {FigureKeys["bar"]}
 */
function barOf({ top, signed }, { scale }, quantity) {
  const colours = makeScale({ scale, top, bottom: Math.min(1e-4, top / 10), signed });
  return { scale: colours, marks: marksOf(colours, false, quantity) };
}

/**
 * @param {Pick<import("./text.js").TextView, "shaded" | "written" | "quantity">} view
 * @returns {TableRow[]}
 */
export function weightRows({ shaded, written, quantity }) {
  if (!shaded) throw new Error("select a token first");
  const { weights, from } = shaded;
  return [
    ["position", "token", quantityTitle(quantity).toLowerCase()],
    ...Array.from(weights, (weight, n) => [n + from, visible(written.tokens[n + from] ?? ""), weight]),
  ];
}
