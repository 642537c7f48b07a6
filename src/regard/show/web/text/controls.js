// @ts-check
// The choices above the text: whose weights, in which direction, on which scale.

import { headPicker, select, fold } from "../parts/controls.js";
import { choice, element } from "../parts/dom.js";
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
  const direction = choice(
    "Shade",
    "text-way",
    { at: "what it attends to", by: "what attends to it" },
    (value) => app.set({ direction: value, row: -1, col: -1 }),
    "Choose a query to shade the keys that it attends to, or a key to shade the queries that attend to it.",
  );
  const scope = choice(
    "Of",
    "text-of",
    { head: "one head", layer: "the layer", all: "all layers" },
    (value) => app.set({ scope: value }),
    "The weights of one head, or their mean over the heads of the layer or of all layers.",
  );
  const sink = choice(
    "Sink",
    "text-sink",
    { in: "shown", apart: "left out" },
    (value) => app.set({ sink: value }),
    "Left out leaves the key that receives the most attention unshaded, so that the others stand out.",
  );
  const scale = choice(
    "Shades",
    "text-scale",
    { linear: "linear", log: "log" },
    (value) => app.set({ scale: value }),
    "How numbers become colours. Log shades also show small weights.",
  );
  const settings = fold("Settings", second, ...quantities.parts, direction, scope, sink, scale);
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
