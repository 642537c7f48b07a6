// @ts-check
// Small helpers to make elements. Text only ever goes in as text: nothing here reads HTML.

import { known } from "../data/arrays.js";
import { choiceWords } from "./control_words.js";

/**
 * How arrow keys move in a table: [rows, columns].
 * @type {Record<string, [number, number]>}
 */
export const ARROWS = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };

/** @typedef {Record<string, string | number | boolean | null | undefined>} Attributes */
/** @typedef {Node | string | number | null | undefined} Child nothing is made of null and undefined */

/**
 * An element with its classes, as in "p.small.quiet". An object among its parts holds attributes, and properties for
 * its style whose names begin with "--"; all other parts are children.
 * @template {keyof HTMLElementTagNameMap} K
 * @param {K | `${K}.${string}`} selector
 * @param {(Attributes | Child)[]} parts
 * @returns {HTMLElementTagNameMap[K]}
 */
export function element(selector, ...parts) {
  const [name, ...classes] = selector.split(".");
  const made = /** @type {HTMLElementTagNameMap[K]} */ (document.createElement(name));
  if (classes.length) made.className = classes.join(" ");
  for (const part of parts) {
    if (part instanceof Node) made.append(part);
    else if (typeof part === "object" && part) setAttributes(made, part);
    else if (known(part)) made.append(String(part));
  }
  return made;
}

/**
 * @param {HTMLElement} made
 * @param {Attributes} attributes true is one without a value; false, null and undefined are left out
 */
function setAttributes(made, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (!known(value) || value === false) continue;
    if (name.startsWith("--")) made.style.setProperty(name, String(value));
    else made.setAttribute(name, value === true ? "" : String(value));
  }
}

/**
 * The terms of a list and what each stands for.
 * @param {[term: string, about: string | number][]} terms
 * @param {Attributes} [attributes] of the terms
 */
export function termList(terms, attributes = {}) {
  return terms.flatMap(([text, about]) => [element("dt", attributes, text), element("dd", about)]);
}

/**
 * The parts of a table: what its columns are called, and lines that begin with what they are called.
 * @param {string[]} columns
 * @param {string[][]} lines
 */
export function tableRows(columns, lines) {
  const names = columns.map((text) => element("th", { scope: "col" }, text));
  const rows = lines.map(([name, ...cells]) =>
    element("tr", element("th", { scope: "row" }, name), ...cells.map((text) => element("td", text))),
  );
  return [element("thead", element("tr", ...names)), element("tbody", ...rows)];
}

/**
 * A button that does something.
 * @param {string} text
 * @param {() => void} act
 * @param {Attributes} [attributes]
 * @param {Child[]} children after the text
 */
export function makeButton(text, act, attributes = {}, ...children) {
  const made = element("button", { class: "button", type: "button", ...attributes }, text, ...children);
  made.addEventListener("click", act);
  return made;
}

/**
 * A line of a list of tokens, as a button: its place, the token and a number.
 * @param {number} place
 * @param {string} token
 * @param {HTMLElement} weight
 * @param {() => void} act
 * @param {Attributes} [attributes]
 */
export function tokenLine(place, token, weight, act, attributes = {}) {
  const parts = [element("span.place", place), " ", element("span.token", token), " ", weight];
  return makeButton("", act, { class: null, ...attributes }, ...parts);
}

/**
 * A switch, which whoever made it turns by its `aria-checked`.
 * @param {string} words beside it
 * @param {() => void} act
 * @param {Attributes} [attributes]
 */
export function makeSwitch(words, act, attributes = {}) {
  const track = element("span.switch-track", { "aria-hidden": "true" });
  const own = { class: "plain switch", role: "switch", "aria-checked": "false" };
  return makeButton("", act, { ...own, ...attributes }, track, words);
}

/**
 * An element of an SVG drawing.
 * @param {string} name
 * @param {Record<string, string | number>} attributes
 */
export function svgElement(name, attributes, text = "") {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, String(value));
  if (text) made.textContent = text;
  return made;
}

/**
 * The label of a control, which opens the glossary at what the control does. Keys reach the glossary from the header.
 * @param {string} label
 * @param {string} [hint]
 */
export function term(label, hint) {
  if (!hint) return element("span", label);
  const made = element("span.term", { title: hint }, label); // a <label> would label a button
  made.addEventListener("click", (event) => {
    event.preventDefault();
    dispatchEvent(new CustomEvent("regard-term", { detail: { label, hint } }));
  });
  return made;
}

/** @typedef {HTMLFieldSetElement & { value: string, offer(value: string, is: boolean): void }} Choice */

/**
 * A choice of one among a few, as radio buttons in a row: options are {value: label}.
 * Returns the fieldset with `.value` to set and `choose` called when the reader chooses; `offer(value, is)` hides an
 * option where it has no meaning. What the options mean stands in `control_words.js` under the name.
 * @param {string} legend
 * @param {string} name
 * @param {Record<string, string>} options
 * @param {(value: string) => void} choose
 */
export function choice(legend, name, options, choose) {
  const words = choiceWords(name);
  const title = element("legend", term(legend, words));
  const box = element("fieldset.choice", { title: words }, title);
  const row = element("div.options");
  const inputs = Object.entries(options).map(([value, label]) => {
    const input = element("input", { type: "radio", name, value });
    input.addEventListener("change", () => choose(value));
    row.append(element("label", input, element("span.option", label)));
    return input;
  });
  box.append(row);
  Object.defineProperty(box, "value", {
    set: (value) => inputs.forEach((input) => (input.checked = input.value === value)),
    get: () => inputs.find((input) => input.checked)?.value,
  });
  /** @type {Choice["offer"]} */
  const offer = (value, is) => {
    const label = inputs.find((input) => input.value === value)?.parentElement;
    if (label) label.hidden = !is;
  };
  return /** @type {Choice} */ (Object.assign(box, { offer }));
}

/**
 * Folds a menu with Escape, when its button takes the focus, and with a press elsewhere if it may.
 * @param {HTMLDetailsElement} menu
 */
export function foldAway(menu, may = () => true) {
  menu.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !menu.open) return;
    menu.open = false;
    menu.querySelector("summary")?.focus();
  });
  addEventListener("pointerdown", (event) => {
    if (!(event.target instanceof Node && menu.contains(event.target)) && may()) menu.open = false;
  });
}

/**
 * Listens to keys on an element; `press` says whether there was something to do.
 * @param {HTMLElement} part
 * @param {(key: string, shift: boolean) => boolean} press
 */
export function onKeys(part, press) {
  part.addEventListener("keydown", (event) => {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    if (press(event.key, event.shiftKey)) event.preventDefault();
  });
}

/**
 * What draws on a canvas.
 * @param {HTMLCanvasElement} canvas
 */
export function contextOf(canvas) {
  const context = canvas.getContext("2d");
  if (!context) throw new Error("This browser cannot draw on a canvas.");
  return context;
}

/**
 * A certificate's badge: what was found of a layer, in a word, with the whole sentence as its title.
 * @param {{ certified: boolean, text: string, unplaced?: string | null }} evidence
 * @param {string} [words]
 */
export function badge({ certified, text, unplaced }, words) {
  const [kind, word] = !certified
    ? ["bad", "Not certified"]
    : unplaced
      ? ["bad", "No tokens"]
      : ["good", "Certified"];
  return element("span", { class: `badge ${kind}`, title: text }, words ?? word);
}

/**
 * Scrolls `box` until `part` is visible. scrollIntoView would also change where Tab goes on from.
 * @param {HTMLElement} part
 * @param {HTMLElement} box
 */
export function reveal(part, box) {
  const [inner, outer] = [part.getBoundingClientRect(), box.getBoundingClientRect()];
  const by = (/** @type {"left" | "top"} */ first, /** @type {"right" | "bottom"} */ last) =>
    Math.min(0, inner[first] - outer[first]) || Math.max(0, inner[last] - outer[last]);
  box.scrollBy({ left: by("left", "right"), top: by("top", "bottom"), behavior: "instant" });
}
