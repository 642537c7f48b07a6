// @ts-check
// The choices above the text: whose weights, in which direction, on which scale.

import { foldedSettings, headPicker, select } from "../parts/controls.js";
import { choice, element } from "../parts/dom.js";
import { quantityControls } from "../parts/quantity_controls.js";
import { layersInScope, secondHeadOptions } from "./scope.js";

/**
 * The controls, which follow the view.
 * @param {import("./text.js").TextView} view
 */
export function makeTextControls(view) {
  const { app } = view;
  const picker = headPicker(app);
  const second = select("Second head", (value) => app.set({ secondHead: value }));
  second.title = "A second head over the same text, in another colour.";
  const quantities = quantityControls(app, "text", () => view.tell());
  const ways = { at: "what it attends to", by: "what attends to it" };
  const direction = choice("Direction", "text-direction", ways, (value) =>
    app.set({ direction: value, row: -1, col: -1 }),
  );
  const scopes = { head: "one head", layer: "the layer", all: "all layers" };
  const scope = choice("Heads", "text-scope", scopes, (value) => app.set({ scope: value }));
  const sinks = { in: "shown", apart: "left out" };
  const sink = choice("Sink", "text-sink", sinks, (value) => app.set({ sink: value }));
  const scales = { linear: "linear", log: "log" };
  const scale = choice("Scale", "text-scale", scales, (value) => app.set({ scale: value }));
  const settings = foldedSettings(second, ...quantities.parts, direction, scope, sink, scale);
  return {
    bar: element("div.bar-of-choices", picker, ...settings),
    /** The token that contributions are of, in quotes. */
    get predicted() {
      return quantities.predicted;
    },
    show() {
      const { state, looking, layers, captured: layer, quantity } = view;
      const stacks = new Set(layers.map((one) => one.stack)).size;
      quantities.show(quantity);
      picker.show({ heads: state.scope === "head", layers: state.scope !== "all" || stacks > 1 });
      const others = secondHeadOptions(layers, layer, state.head);
      second.fill(others, others.some(([address]) => address === state.secondHead) ? state.secondHead : "");
      second.hidden = state.scope !== "head" || others.length < 2;
      direction.value = looking ? "at" : "by";
      scope.value = state.scope;
      sink.value = state.sink;
      scale.value = state.scale;
      sink.hidden = !looking;
      direction.hidden = quantity.shade === "logit";
      // Layers whose tokens are other patches have no common mean.
      const alike = layersInScope(layers, layer, "all").every(
        (one) => one.keys_of === layer.keys_of && one.queries_of === layer.queries_of,
      );
      scope.offer("all", alike);
      if (!alike && state.scope === "all") app.set({ scope: "layer" });
    },
  };
}
