// @ts-check
// The controls that say what cells and shades stand for. A control is there only where there is something to choose.

import { latest, select } from "./controls.js";
import { choice } from "./dom.js";
import { percent } from "../data/format.js";
import { short } from "../data/tokens.js";
import { WHOLE } from "../data/settings.js";
import { unitNames } from "../data/units.js";

/** @type {Record<ShadeName, string>} */
const SHADES = {
  weights: "attention weights",
  values: "value-weighted attention",
  logit: "contributions to a prediction",
};
const UNITS = { tokens: "tokens", words: "words", sentences: "sentences" };

/**
 * `changed` is called when the name of the predicted token has come.
 * @param {App} app
 * @param {string} view a name for the radio buttons
 * @param {() => void} changed
 */
export function quantityControls(app, view, changed) {
  const units = choice("Unit", `${view}-units`, UNITS, (value) => app.set({ units: value, ...WHOLE }));
  const shade = select("Quantity", (value) => app.set({ shade: value }));
  const token = select("Next token", (value) => app.set({ token: Number(value) }));
  let predicted = "the predicted token";
  const fillTokens = latest(async (fresh, /** @type {Quantity} */ quantity) => {
    if (quantity.shade !== "logit") return;
    const found = await app.source.attribution(app.state.text, quantity.position, quantity.token);
    if (!fresh()) return;
    const name = `“${short(found.token.token, 24)}”`;
    if (name !== predicted) setTimeout(changed);
    predicted = name;
    token.fill(
      found.candidates.map(({ id, token: name, probability }) => [
        String(id),
        `${short(name, 18)}${probability === null ? "" : ` ${percent(probability)}`}`,
      ]),
      found.token.id,
    );
  });
  return {
    parts: [units, shade, token],
    /** The token that contributions are of, in quotes. */
    get predicted() {
      return predicted;
    },
    /** @param {Quantity} quantity */
    show(quantity) {
      const text = app.meta.texts[app.state.text];
      units.value = quantity.units;
      units.hidden = unitNames(text).length < 2 || (view === "map" && quantity.shade === "logit");
      shade.fill(text.shades, quantity.shade, (/** @type {ShadeName} */ name) => SHADES[name]);
      shade.hidden = text.shades.length < 2;
      token.hidden = quantity.shade !== "logit";
      fillTokens(quantity);
    },
  };
}
