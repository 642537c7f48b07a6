// @ts-check
// All layers × heads as small maps: choose one. Heads that share a key/value head stand together.

import { paintThumb } from "../common/colours.js";
import { ARROWS, badge, element, reveal } from "../common/dom.js";
import { absences } from "../common/layers.js";
import { THUMB } from "../common/tile.js";

/** @typedef {HTMLButtonElement & { picture: HTMLCanvasElement }} Thumbnail */

/**
 * Fills `root`; calls `came` when small maps have come. Returns {show(state), chosen(state)}.
 * @param {HTMLElement} root
 * @param {App} app
 * @param {() => void} [came]
 */
export function thumbnails(root, app, came = () => {}) {
  /** @type {Map<string, Map<number, Thumbnail>>} */
  const rows = new Map(); // layer key → its buttons by head
  /** @type {Map<Thumbnail, Uint8Array>} */
  const pictures = new Map(); // button → its bytes
  let text = -1;

  function build() {
    rows.clear();
    pictures.clear();
    const { layers } = app.meta.texts[text];
    const table = element("div", { class: "grid", role: "grid", "aria-label": "Layers and heads" });
    for (const layer of layers) table.append(line(layer));
    table.addEventListener("keydown", walk);
    const uncertified = layers.filter((layer) => !layer.evidence.certified).length;
    const head = element("div", { class: "grid-head" });
    head.append(element("h2", { text: "Every head" }));
    const absent = absences(app.meta.texts[text].missing);
    const complete = absent ? "Incomplete" : "Certified";
    const words = uncertified ? `${uncertified} of ${layers.length} not certified` : complete;
    const all = absent ? `Every layer shown is certified. ${absent}` : "Every layer is certified.";
    const title = uncertified ? `Layers without a proof: ${words}.` : all;
    head.append(badge({ certified: !uncertified && !absent, text: title }, words));
    const note = element("p", { class: "note heads-warning", text: absent, hidden: !absent });
    root.replaceChildren(head, note, table);
    resize();
    fetchAll(layers, text);
  }

  /** Small maps as large as lets a layer stand in one line. */
  function resize() {
    const { layers } = app.meta.texts[text];
    const most = Math.max(...layers.map((layer) => layer.heads.length));
    const grouped = Math.max(...layers.map((layer) => (layer.group > 1 ? layer.kv_heads * 4 : 0)));
    const marks = [...root.querySelectorAll(".grid-label small")];
    const longest = Math.max(...marks.map((one) => one.textContent.length));
    const name = Math.max(...layers.map((layer) => layer.key.length));
    const label = Math.max(36, 6.2 * longest, 7.4 * name); // pixels
    root.parentElement?.style.setProperty("--side", most > 9 ? "31%" : "25%"); // of the page
    const room = root.clientWidth - 50 - label - grouped;
    root.style.setProperty("--label", `${label}px`);
    root.style.setProperty("--thumb", `${Math.max(20, Math.min(56, Math.floor(room / most) - 4))}px`);
  }

  /** @param {Layer} layer */
  function line(layer) {
    const row = element("div", { class: "grid-row", role: "row" });
    const label = element("div", { class: "grid-label", role: "rowheader", text: layer.key });
    label.append(element("small", { text: layer.window ? `last ${layer.window}` : "full" }));
    label.title = `Layer ${layer.key} (${layer.name}): ${layer.mask}. ${layer.evidence.text}`;
    if (!layer.evidence.certified) label.append(element("small", { class: "bad", text: "uncertified" }));
    const heads = element("div", { class: "grid-heads", role: "presentation" });
    /** @type {Map<number, Thumbnail>} */
    const buttons = new Map();
    let group = element("div");
    layer.heads.forEach((number, at) => {
      if (at % layer.group === 0) {
        group = element("div", { class: layer.group > 1 ? "group several" : "group", role: "presentation" });
        if (layer.group > 1) group.title = `Key/value head ${at / layer.group}`;
        heads.append(group);
      }
      const picture = element("canvas", { width: THUMB, height: THUMB });
      const button = Object.assign(
        element("button", { class: "thumb", type: "button", role: "gridcell", tabindex: "-1" }, picture),
        { picture },
      );
      button.setAttribute("aria-label", `Layer ${layer.key}, head ${number}`);
      button.title = `Layer ${layer.key}, head ${number}`;
      button.addEventListener("click", () => app.set({ layer: layer.key, head: number }));
      buttons.set(number, button);
      group.append(button);
    });
    rows.set(layer.key, buttons);
    row.append(label, heads);
    return row;
  }

  /**
   * @param {Layer[]} layers
   * @param {number} asked
   */
  async function fetchAll(layers, asked) {
    for (const layer of layers) {
      let found;
      try {
        found = await app.source.thumbs(asked, layer.key);
      } catch (error) {
        app.status(`The small maps of layer ${layer.key} did not come: ${error.message}`);
        continue;
      }
      if (asked !== text) return;
      layer.heads.forEach((number, at) => {
        const button = rows.get(layer.key)?.get(number);
        if (!button) return;
        const bytes = found.pictures.subarray(at * THUMB * THUMB, (at + 1) * THUMB * THUMB);
        pictures.set(button, bytes);
        paintThumb(button.picture, bytes);
      });
      came();
    }
  }

  /**
   * Arrow keys go from head to head and from layer to layer.
   * @param {KeyboardEvent} event
   */
  function walk(event) {
    const move = ARROWS[event.key];
    if (!move) return;
    event.preventDefault();
    const { layers } = app.meta.texts[text];
    const { layer, head } = app.state;
    const y = layers.findIndex((one) => one.key === layer);
    const to = layers[Math.min(layers.length - 1, Math.max(0, y + move[0]))];
    const x = layers[y].heads.indexOf(head) + move[1];
    const next = to.heads[Math.min(to.heads.length - 1, Math.max(0, x))];
    app.set({ layer: to.key, head: next });
    rows.get(to.key)?.get(next)?.focus();
  }

  new ResizeObserver(() => text >= 0 && resize()).observe(root);
  addEventListener("regard-theme", () => {
    for (const [button, bytes] of pictures) paintThumb(button.picture, bytes);
  });

  return {
    /** @param {State} state */
    show(state) {
      if (state.text !== text || rows.size !== app.meta.texts[text].layers.length) {
        text = state.text;
        build();
      }
      for (const [key, buttons] of rows) {
        for (const [number, button] of buttons) {
          const chosen = key === state.layer && number === state.head;
          button.setAttribute("aria-selected", String(chosen));
          button.tabIndex = chosen ? 0 : -1;
          if (chosen) reveal(button, root);
        }
      }
    },
    /**
     * The small picture of the chosen head, as a canvas, if it has come.
     * @param {State} state
     */
    chosen(state) {
      const button = rows.get(state.layer)?.get(state.head);
      return button && pictures.has(button) ? button.picture : null;
    },
  };
}
