// @ts-check
// Parts that several views share: choosing a layer and a head, a ramp with its ends, a slider with its value, controls
// behind a button.

import { layerName, layerOf } from "../data/layers.js";
import { ramp } from "./colours.js";
import { CONTROL_WORDS } from "./control_words.js";
import { contextOf, element, makeButton, term } from "./dom.js";
import { theme } from "./theme.js";

/**
 * A control with its label, which explains it.
 * @param {"label.field" | "label.slider"} selector
 * @param {string} label
 * @param {HTMLElement[]} parts
 */
function labelled(selector, label, ...parts) {
  const words = CONTROL_WORDS[label];
  return element(selector, { title: words }, element("span.quiet.small", term(label, words)), ...parts);
}

/**
 * A labelled select; `fill(values, value, say)` offers values as `say` writes them, or pairs of a value and its text.
 * @param {string} label
 * @param {(value: string) => void} choose
 */
export function select(label, choose) {
  const box = element("select", { "aria-label": label });
  const whole = labelled("label.field", label, box);
  let shown = "";
  /**
   * @param {(string | number | string[])[]} values
   * @param {string | number} value
   * @param {(value: any) => string} [say]
   */
  const fill = (values, value, say = String) => {
    const options = values.map((one) => (Array.isArray(one) ? one : [String(one), say(one)]));
    const now = JSON.stringify(options);
    if (now !== shown)
      box.replaceChildren(...options.map(([v, text]) => element("option", { value: v }, text)));
    shown = now;
    box.value = String(value);
  };
  box.addEventListener("change", () => choose(box.value));
  return Object.assign(whole, { fill });
}

/**
 * Offers layers, each with what sets it apart.
 * @param {ReturnType<typeof select>} choice
 * @param {Layer[]} layers
 * @param {string} key
 */
export function fillLayers(choice, layers, key) {
  choice.fill(
    layers.map((one) => [one.key, layerName(one)]),
    key,
  );
}

/**
 * Two selects, for a layer and a head; `show()` keeps them up to date.
 * @param {App} app
 */
export function headPicker(app) {
  const layer = select("Layer", (key) => app.set({ layer: key }));
  const head = select("Head", (value) => app.set({ head: Number(value) }));
  const box = element("div.fields", layer, head);
  const show = ({ heads = true, layers = true } = {}) => {
    const { state } = app;
    const about = layerOf(app.meta, state.text, state.layer);
    fillLayers(layer, app.meta.texts[state.text].layers, about.key);
    head.fill(about.heads, state.head);
    layer.hidden = !layers;
    head.hidden = !heads;
    box.hidden = !heads && !layers;
  };
  return Object.assign(box, { show });
}

/**
 * A strip of colours with what stands at its two ends, which `show` says.
 * @param {HTMLCanvasElement} canvas
 */
export function barWithEnds(canvas) {
  const [low, high] = [element("span"), element("span")];
  const box = element("span.ramp.small.quiet", low, canvas, high);
  const show = (/** @type {string} */ least, /** @type {string} */ most) => {
    low.textContent = least;
    high.textContent = most;
  };
  return Object.assign(box, { show });
}

/**
 * Paints the ramp on a canvas that is 256 pixels wide.
 * @param {HTMLCanvasElement} canvas
 * @param {boolean} signed
 */
export function paintRamp(canvas, signed) {
  const context = contextOf(canvas);
  const image = context.createImageData(256, 1);
  new Uint32Array(image.data.buffer).set(ramp(theme(), signed).pixels);
  context.putImageData(image, 0, 0);
}

/** The ramp as a strip, with what stands at its two ends. */
export function rampBar() {
  const canvas = element("canvas", { width: 256, height: 1, "aria-hidden": "true" });
  const bar = barWithEnds(canvas);
  const { show: showEnds } = bar;
  const show = (/** @type {string} */ least, /** @type {string} */ most, signed = false) => {
    paintRamp(canvas, signed);
    showEnds(least, most);
  };
  return Object.assign(bar, { show });
}

/**
 * A slider over a list of values, with the chosen one beside it.
 * @param {string} label
 * @param {(value: number) => void} choose
 * @param {(value: number) => string} [say]
 */
export function slider(label, choose, say = String) {
  const input = element("input", { type: "range", min: 0, step: 1, "aria-label": label });
  const value = element("output.mono");
  const box = labelled("label.slider", label, input, value);
  /** @type {number[]} */
  let values = [];
  const spell = () => {
    value.textContent = values.length ? say(values[Number(input.value)]) : "–";
    input.setAttribute("aria-valuetext", value.textContent);
  };
  const fill = (/** @type {number[]} */ all, /** @type {number} */ chosen) => {
    values = all;
    input.max = String(Math.max(0, all.length - 1));
    input.value = String(Math.max(0, all.indexOf(chosen)));
    input.disabled = all.length < 2;
    spell();
  };
  input.addEventListener("input", () => {
    spell();
    choose(values[Number(input.value)]);
  });
  return Object.assign(box, { fill, input });
}

/**
 * A sentence where there is nothing to show.
 * @param {string} text
 */
export function empty(text) {
  return element("p.empty", text);
}

/**
 * Runs `work(fresh)` so that only the latest call counts: `fresh()` is false once another has begun.
 * @template {unknown[]} A
 * @template R
 * @param {(fresh: () => boolean, ...given: A) => R} work
 */
export function latest(work) {
  let turn = 0;
  /** @param {A} given */
  return (...given) => {
    const mine = ++turn;
    return work(() => mine === turn, ...given);
  };
}

let made = 0;

/**
 * The button "Settings", and the controls that it opens.
 * @param {HTMLElement[]} parts
 */
export function foldedSettings(...parts) {
  const id = `fold-${++made}`;
  const box = element("div.fold", { id, hidden: true }, ...parts);
  const open = () => {
    box.hidden = !box.hidden;
    button.setAttribute("aria-expanded", String(!box.hidden));
  };
  const state = { class: "button fold-button", "aria-controls": id, "aria-expanded": "false" };
  const button = makeButton("Settings", open, state);
  return [button, box];
}
