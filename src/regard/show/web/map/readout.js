// @ts-check
// The notes beside the large map: the weight under the pointer or the cursor, what the chosen query looks at,
// and what is known of the layer.

import { badge, element } from "../common/dom.js";
import { exact } from "../common/format.js";
import { short, tokenAt } from "../common/tokens.js";

const RANKED = 8; // keys that are listed

/**
 * Fills `root`; returns {cell(…), layer(…), row(…)} to say what is to be read there.
 * @param {HTMLElement} root
 * @param {App} app
 */
export function readout(root, app) {
  const number = element("p", { class: "big-number", id: "weight" });
  const where = element("dl", { class: "facts" });
  const note = element("p", { class: "small quiet" });
  const live = element("div", { class: "notes-block", "aria-live": "polite" });
  live.append(element("h3", { text: "Weight" }), number, where, note);
  const ranked = element("div", { class: "notes-block" });
  const about = element("div", { class: "notes-block" });
  root.append(live, ranked, about);
  let asked = "";
  let shown = "";

  /**
   * @param {string} name
   * @param {string} value
   * @param {string} [mono]
   */
  const fact = (name, value, mono = "") => [
    element("dt", { text: name }),
    element("dd", { text: value, class: mono }),
  ];
  /**
   * @param {State} state
   * @param {Layer} layer
   * @param {Axis} axis
   * @param {number} index
   */
  const named = (state, layer, axis, index) =>
    `${index} ${short(tokenAt(app.meta, state.text, layer, axis, index), 24)}`;

  return {
    /**
     * One cell: {row, col, size, mass, max, exact}, or null. `size` 1 is a single weight.
     * @param {State} state
     * @param {Layer} layer
     * @param {CellWeights | null} cell
     */
    cell(state, layer, cell) {
      const name = JSON.stringify([state.text, layer.key, state.head, cell]);
      if (name === shown) return;
      shown = name;
      if (!cell) {
        number.textContent = "–";
        delete number.dataset.weight;
        where.replaceChildren();
        note.textContent = "Point at the map, or choose a cell with the arrow keys.";
        return;
      }
      const { row, col, size, mass, max } = cell;
      note.textContent = "";
      if (max < 0) {
        number.textContent = "hidden";
        delete number.dataset.weight;
        note.textContent = `The mask (${layer.mask}) does not let the query look here.`;
      } else {
        number.textContent = exact(mass);
        number.dataset.weight = String(mass);
      }
      if (size === 1) {
        where.replaceChildren(
          ...fact("query", named(state, layer, "queries", row)),
          ...fact("key", named(state, layer, "keys", col)),
        );
        return;
      }
      /**
       * @param {number} first
       * @param {number} all
       */
      const last = (first, all) => Math.min(first + size, all) - 1;
      where.replaceChildren(
        ...fact("queries", `${row}–${last(row, layer.rows)}`),
        ...fact("keys", `${col}–${last(col, layer.cols)}`),
        ...fact("greatest", max < 0 ? "–" : exact(max)),
      );
      if (max >= 0) note.textContent = "The share of their attention that these queries give these keys.";
    },

    /**
     * What the chosen query looks at most.
     * @param {State} state
     * @param {Layer} layer
     */
    async row(state, layer) {
      const key = [state.text, state.layer, state.head, state.row].join(" ");
      if (key === asked) return;
      asked = key;
      ranked.hidden = state.row < 0;
      if (state.row < 0) return;
      const weights = await app.source.row(state.text, state.layer, state.head, state.row);
      if (key !== asked) return;
      const order = [...weights.keys()].sort((a, b) => weights[b] - weights[a]).slice(0, RANKED);
      const list = element("ol", { class: "ranked" });
      for (const col of order.filter((one) => weights[one] > 0)) {
        const token = short(tokenAt(app.meta, state.text, layer, "keys", col), 18);
        const button = element("button", { type: "button" });
        button.append(
          element("span", { class: "place", text: String(col) }),
          element("span", { class: "token", text: token }),
          element("span", { class: "weight", text: weights[col].toFixed(4) }),
        );
        button.addEventListener("click", () => app.set({ col }));
        list.append(element("li", {}, button));
      }
      const token = short(tokenAt(app.meta, state.text, layer, "queries", state.row), 18);
      const own = element("span", { class: "token", text: token });
      ranked.replaceChildren(element("h3", {}, `Query ${state.row} `, own, " looks at"), list);
    },

    /**
     * The layer: its certificate and its numbers.
     * @param {State} state
     * @param {Layer} layer
     */
    layer(state, layer) {
      const list = element("dl", { class: "facts" });
      list.append(
        ...fact("module", layer.name || "–"),
        ...fact("mask", layer.mask),
        ...fact("scale", exact(layer.scale)),
        ...fact("queries × keys", [layer.rows, layer.cols].map((n) => n.toLocaleString("en")).join(" × ")),
        ...fact("heads", layer.heads.length + (layer.group > 1 ? ` on ${layer.kv_heads} key/value` : "")),
        ...fact("head width", String(layer.width)),
      );
      if (layer.softcap) list.append(...fact("softcap", String(layer.softcap)));
      if (layer.sinks) list.append(...fact("sinks", "a learned logit a head takes its share"));
      const proof = element("p", { class: "small quiet proof", text: layer.evidence.text });
      const heading = element("h3", { text: `Layer ${layer.key}` });
      about.replaceChildren(heading, badge(layer.evidence), proof, list);
      const { precision } = app.meta;
      if (precision) {
        const percent = Math.max(100 * precision.relative, 1e-4);
        const digit = 10 ** Math.floor(Math.log10(percent));
        const off = `${Number((Math.ceil(percent / digit) * digit).toPrecision(1))}%`; // rounded up
        const text =
          `This file keeps rounded queries and keys: weights are within ${off} of the library's, ` +
          `measured on up to ${precision.rows} queries of every head.`;
        about.append(element("p", { class: "small quiet", text }));
      }
    },
  };
}
