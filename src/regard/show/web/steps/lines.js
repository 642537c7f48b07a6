// @ts-check
// The lines of a step: whose number it is, the number as a bar or a strip of colours, and its figure.

import { element } from "../parts/dom.js";
import { number } from "../data/format.js";
import { visible } from "../data/tokens.js";
import { allNumbers, reach, vector } from "./vectors.js";

/**
 * The vectors of the shown keys, one a line; a first line of its own if there is one.
 * @param {StepContext} context
 * @param {"k" | "v"} part
 * @param {NamedVector | null} [first]
 * @returns {Node[]}
 */
export function vectors(context, part, first = null) {
  const { keys } = context;
  const own = context.work.position;
  const of = (/** @type {KeySteps} */ key) => key[part] ?? [];
  const most = reach([...(first ? [first.values] : []), ...keys.map(of)]);
  const rows = keys.map((key) =>
    entry(
      key.key,
      context.key(key.key),
      vector(of(key), most, `${part}[${key.key}]`),
      null,
      key.visible ? "" : "hidden-key",
    ),
  );
  if (first) rows.unshift(entry(own, context.name, vector(first.values, most, first.name), null, "query"));
  const place = rows[0].querySelector(".place");
  if (first && place) place.textContent = first.name;
  const all = [
    ...(first ? [first] : []),
    ...keys.map((key) => ({ name: `${part}[${key.key}]`, values: of(key) })),
  ];
  return [element("div.rows", ...rows), ...(all[0].values.length > 4 ? [allNumbers(all)] : [])];
}

/**
 * A bar for each shown key: `what` is the name of a number, or a function of the key.
 * @param {StepContext} context
 * @param {"score" | "scaled" | "capped" | ((key: KeySteps) => number)} what
 * @returns {HTMLElement[]}
 */
export function bars(context, what) {
  /** @type {(key: KeySteps) => number} */
  const value = typeof what === "string" ? (key) => key[what] : what;
  const all = context.keys.map(value).filter(Number.isFinite);
  const [low, high] = [Math.min(0, ...all), Math.max(0, ...all)];
  const rows = context.keys.map((key) => bar(context, key, value(key), low, high, number(value(key), 3)));
  return [element("div.rows", ...rows)];
}

/**
 * @param {StepContext} context
 * @param {KeySteps} key
 * @param {number} value
 * @param {number} low
 * @param {number} high
 * @param {string} text
 */
export function bar(context, key, value, low, high, text, kind = "") {
  const row = entry(key.key, context.key(key.key), barLine(value, low, high, kind), text);
  if (!Number.isFinite(value) || !key.visible) row.classList.add("hidden-key");
  row.lastElementChild?.setAttribute("data-value", String(value));
  return row;
}

/**
 * A number as a bar from 0, on a line from `low` to `high`; the line alone for −∞.
 * @param {number} value
 * @param {number} low
 * @param {number} high
 */
export function barLine(value, low, high, kind = "") {
  const span = high - low || 1;
  const [from, size] = [(Math.min(0, value) - low) / span, Math.abs(value) / span];
  return element(
    "span",
    { class: `bar-line ${kind}`, "aria-hidden": "true", "--zero": -low / span },
    Number.isFinite(value) ? element("i", { "--from": from, "--size": size }) : null,
  );
}

/**
 * @param {StepContext} context
 * @param {string} text
 * @param {number} value
 */
export function remainder({ work, keys }, text, value) {
  return entry(null, `${work.shapes.S - keys.length} others`, barLine(value, 0, 1, "weights"), text, "cut");
}

/**
 * @param {string} name
 * @param {string} text
 */
export function total(name, text) {
  return entry(null, name, element("span"), text, "total");
}

/**
 * A line: whose it is, what is drawn, and a figure if there is one.
 * @param {number | null} place
 * @param {string} token
 * @param {Node} drawing
 * @param {string | null} [text]
 * @param {string} [kind]
 */
export function entry(place, token, drawing, text = null, kind = "") {
  const whole = place === null ? token : visible(token);
  const named = element("span.token", { title: whole }, place === null ? whole : whole.slice(0, 60));
  return element(
    "div",
    { class: `row ${text === null ? "wide" : ""} ${kind}`, "data-key": place },
    element("span.who", element("span.place", place), named),
    element("span.drawn", drawing),
    text === null ? null : element("span.figure", text),
  );
}

/** @param {[boolean, string][]} list */
export function checks(list) {
  const lines = list.map(([good, text]) => {
    const sign = element("span", { class: `sign ${good ? "" : "bad"}` }, good ? "✓" : "✗");
    return element("li", sign, element("span", text));
  });
  return element("ul.checks", ...lines);
}
