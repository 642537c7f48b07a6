// @ts-check
// The shown keys of a row in the order of the text, with the query and an arc to each key that it attends to.

import { ArcLayer } from "../parts/arcs.js";
import { element } from "../parts/dom.js";
import { percent } from "../data/format.js";
import { short } from "../data/tokens.js";

const LEAST = 0.1; // of the strongest weight, below which a key has no arc

/** @param {StepContext} context */
export function edgeStrip({ work, keys, key, name, layer }) {
  const strip = element("div.edge-strip", { "aria-hidden": "true" });
  /** @type {HTMLElement | null} */
  let query = null;
  let before = -1;
  const tokens = keys.map((one) => {
    if (one.key > before + 1) strip.append(element("span.quiet", "…"));
    before = one.key;
    const token = stripToken(key(one.key), percent(one.weight));
    if (one.key === work.position && layer?.stack !== "cross") {
      token.classList.add("at");
      query = token;
    }
    strip.append(token);
    return token;
  });
  if (!query) {
    query = stripToken(name, "");
    query.classList.add("at");
    strip.append(element("span.quiet", "←"), query);
  }
  const from = query;
  const top = Math.max(...keys.map(({ weight }) => weight));
  const arcs = keys.flatMap(({ weight }, n) =>
    tokens[n] === from || weight < LEAST * top || !weight
      ? []
      : [{ from, to: tokens[n], strength: weight / top, kind: /** @type {const} */ ("first") }],
  );
  new ArcLayer(strip).draw(arcs);
  return strip;
}

/**
 * @param {string} name
 * @param {string} weight
 */
function stripToken(name, weight) {
  return element("span.strip-token", element("span.token", short(name, 16)), element("span.weight", weight));
}
