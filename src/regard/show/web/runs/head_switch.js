// @ts-check
// The switch that cuts a head. Where there is no model it is hidden.

import { makeSwitch } from "../parts/dom.js";

/** @typedef {HTMLButtonElement & { show(layer: string, head: number): void }} HeadSwitch */

/**
 * A switch; `show(layer, head)` says whose it is and puts it as the shown run has it.
 * @param {App} app
 * @param {string} words beside it
 * @param {import("../parts/dom.js").Attributes} [attributes]
 * @returns {HeadSwitch}
 */
export function headSwitch(app, words, attributes) {
  const { runs } = app;
  const button = makeSwitch(words, () => runs.toggle(cut), attributes);
  /** @type {Cut} */
  let cut = { kind: "head", layer: "", head: -1 };
  const draw = () => {
    button.hidden = !runs.available;
    button.setAttribute("aria-checked", String(runs.has(cut)));
    button.setAttribute("aria-disabled", String(runs.running !== null));
  };
  /** @type {HeadSwitch["show"]} */
  const show = (layer, head) => {
    cut = { kind: "head", layer, head };
    button.setAttribute("aria-label", `Cut head ${layer}.${head}`);
    button.title = "Run the model again without this head: its output becomes zero";
    draw();
  };
  runs.on(draw);
  return Object.assign(button, { show });
}
