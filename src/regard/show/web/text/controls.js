// @ts-check
// The choices above the text: whose weights, in which direction, on which scale.

import { foldedSettings, headPicker, select, weightChoices } from "../parts/controls.js";
import { element } from "../parts/dom.js";
import { quantityControls } from "../parts/quantity_controls.js";
import { secondHeadOptions } from "./scope.js";

/**
 * @param {App} app
 * @param {() => void} changed when there is more to say
 */
export function makeTextControls(app, changed) {
  const picker = headPicker(app);
  const second = select("Second head", (value) => app.set({ secondHead: value }));
  second.title = "A second head over the same text, in another colour.";
  const quantities = quantityControls(app, "text", changed);
  const { direction, scope, sink, scale } = weightChoices(app, "text", {
    direction: "Direction",
    sink: "Sink",
  });
  const settings = foldedSettings(second, ...quantities.parts, direction, scope, sink, scale);
  return {
    bar: element("div", { class: "bar-of-choices" }, picker, ...settings),
    /** The token that contributions are of, in quotes. */
    get predicted() {
      return quantities.predicted;
    },
    /**
     * @param {State} state
     * @param {boolean} looking
     * @param {Layer[]} layers all of the text's
     * @param {Layer} layer
     * @param {Quantity} quantity
     */
    show(state, looking, layers, layer, quantity) {
      const stacks = new Set(layers.map((one) => one.stack)).size;
      quantities.show(state, quantity);
      picker.show(state, { heads: state.scope === "head", layers: state.scope !== "all" || stacks > 1 });
      const others = secondHeadOptions(layers, layer, state.head);
      second.fill(others, others.some(([address]) => address === state.secondHead) ? state.secondHead : "");
      second.hidden = state.scope !== "head" || others.length < 2;
      direction.value = looking ? "at" : "by";
      scope.value = state.scope;
      sink.value = state.sink;
      scale.value = state.scale;
      sink.hidden = !looking;
      direction.hidden = quantity.shade === "logit";
    },
  };
}
