// @ts-check
// The controls of the Image view.

import { foldedSettings, headPicker, weightChoices } from "../parts/controls.js";
import { choice, element } from "../parts/dom.js";
import { layersInScope } from "../text/scope.js";

/**
 * @param {App} app
 * @param {HTMLElement} exports the menu that saves what is shown
 */
export function makeImageControls(app, exports) {
  const picker = headPicker(app);
  const { direction, scope, sink, scale } = weightChoices(app, "image", {
    direction: "Show",
    sink: "Outliers",
  });
  const grounds = { grey: "grey", colour: "in colour" };
  const ground = choice("Picture", "image-ground", grounds, (value) => app.set({ ground: value }));
  const settings = foldedSettings(direction, scope);
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
