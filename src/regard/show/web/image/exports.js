// @ts-check
// What the Image view saves: the picture with its heat as a figure, and the weights of the chosen token.

import { percent } from "../data/format.js";
import { viewFigure } from "../picture/figure.js";
import { headWords, textWords } from "../picture/words.js";
import { scopeName } from "../text/scope.js";

/**
 * The figure of what is shown.
 * @param {import("./image.js").ImageView} view
 */
export async function imageFigure({ app, state, layer, heat, said, chips, stage, about, outliers, looking }) {
  if (!heat) throw new Error("no patch of this layer is shown");
  const { text, head } = state;
  const words =
    state.scope === "head"
      ? await headWords(app, { text, layer: layer.key, head })
      : textWords(app, scopeName(state, layer), text);
  const end = `The colours go from clear, for 0, over amber to red, for ${percent(heat.top)}.`;
  const rings = outliers.size && looking ? "A ring marks a patch that receives far more than others." : "";
  words.notes = [`${said.textContent}.`, end, rings, about.textContent ?? ""].filter(Boolean);
  return viewFigure([chips.box, stage], words);
}

/**
 * @param {import("./image.js").ImageView} view
 * @returns {TableRow[]}
 */
export function patchRows(view) {
  if (!view.heat) throw new Error("no patch of this layer is shown");
  const { weights, from } = view.heat;
  const { names } = view.axis("theirs");
  return [
    ["token", "name", "weight"],
    ...Array.from(weights, (weight, n) => [n + from, (names[n + from] ?? "").replace(/\s/g, " "), weight]),
  ];
}
