// @ts-check
// The controls of the Image view.

import { headPicker, fold } from "../parts/controls.js";
import { choice, element } from "../parts/dom.js";
import { layersInScope } from "../text/scope.js";

/**
 * @param {App} app
 * @param {HTMLElement} exports the menu that saves what is shown
 */
export function makeImageControls(app, exports) {
  const picker = headPicker(app);
  const direction = choice(
    "Show",
    "image-way",
    { at: "what it attends to", by: "what attends to it" },
    (value) => app.set({ direction: value, row: -1, col: -1 }),
    "Choose a query to see the keys that it attends to, or a key to see the queries that attend to it.",
  );
  const scope = choice(
    "Of",
    "image-of",
    { head: "one head", layer: "the layer", all: "all layers" },
    (value) => app.set({ scope: value }),
    "The weights of one head, or their mean over the heads of the layer or of all layers.",
  );
  const sink = choice(
    "Outliers",
    "image-sink",
    { in: "shown", apart: "left out" },
    (value) => app.set({ sink: value }),
    "Patches that receive far more attention than others have a ring; left out, they have no colour, so that the others stand out.",
  );
  const scale = choice(
    "Shades",
    "image-scale",
    { linear: "linear", log: "log" },
    (value) => app.set({ scale: value }),
    "How numbers become colours. Log shades also show small weights.",
  );
  const ground = choice(
    "Picture",
    "image-ground",
    { grey: "grey", colour: "in colour" },
    (value) => app.set({ ground: value }),
    "In grey, colours mean attention and nothing else.",
  );
  const settings = fold("Settings", direction, scope);
  return {
    bar: element("div", { class: "bar-of-choices" }, picker, ...settings, exports),
    look: element("div", { class: "image-look" }, sink, scale, ground),
    /**
     * @param {State} state
     * @param {boolean} looking
     * @param {Layer[]} layers of the text
     * @param {Layer} layer
     */
    show(state, looking, layers, layer) {
      picker.show(state, { heads: state.scope === "head", layers: true });
      direction.value = looking ? "at" : "by";
      scope.value = state.scope;
      sink.value = state.sink;
      sink.hidden = !looking;
      scale.value = state.scale;
      ground.value = state.ground;
      // Layers whose tokens are other patches have no common mean.
      const alike = layersInScope(layers, layer, "all").every(
        (one) => one.keys_of === layer.keys_of && one.queries_of === layer.queries_of,
      );
      scope.querySelectorAll("input").forEach((input) => {
        if (input.value === "all") input.disabled = !alike;
      });
      if (!alike && state.scope === "all") app.set({ scope: "layer" });
    },
  };
}
