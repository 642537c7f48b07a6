// @ts-check
// All layers × heads as small maps: choose one. Heads that share a key/value head stand together.

import { paintSignedThumb, paintThumb } from "../common/colours.js";
import { ARROWS, badge, element, reveal } from "../common/dom.js";
import { maskName } from "../common/layers.js";
import { settings } from "../common/settings.js";
import { captureSummary, gridShare, gridSizes, headBeside, pictureDifference } from "./thumbnail_grid.js";

/** @typedef {HTMLButtonElement & { picture: HTMLCanvasElement }} Thumbnail */

/** The grid; it fills `root` and calls `came` when thumbnails have come. */
export class Thumbnails {
  /**
   * @param {HTMLElement} root
   * @param {App} app
   * @param {() => void} came
   * @param {HTMLElement} above stands over the grid
   */
  constructor(root, app, came, above) {
    this.root = root;
    this.above = above;
    this.app = app;
    this.came = came;
    /** @type {Map<string, Map<number, Thumbnail>>} */
    this.rows = new Map(); // a layer's key → its buttons by head
    /** @type {Map<Thumbnail, Uint8Array>} */
    this.pictures = new Map(); // a button → its bytes
    this.text = -1;
    this.against = -1; // a text whose pictures are subtracted
    new ResizeObserver(() => this.text >= 0 && this.resize()).observe(root);
    addEventListener("regard-theme", () => {
      for (const [button, bytes] of this.pictures) this.paint(button, bytes);
    });
  }

  get layers() {
    return this.app.meta.texts[this.text].layers;
  }

  /**
   * @param {State} state
   * @param {Quantity} quantity
   */
  show(state, { against }) {
    if (state.text !== this.text || this.rows.size !== this.layers.length) {
      [this.text, this.against] = [state.text, against];
      this.build();
    } else if (against !== this.against) {
      this.against = against;
      this.fetch(this.text, against);
    }
    for (const [key, buttons] of this.rows) {
      for (const [number, button] of buttons) {
        const chosen = key === state.layer && number === state.head;
        button.setAttribute("aria-selected", String(chosen));
        button.tabIndex = chosen ? 0 : -1;
        if (chosen) reveal(button, this.root);
      }
    }
  }

  /**
   * The thumbnail of the chosen head, as a canvas, if it has come.
   * @param {State} state
   */
  chosen(state) {
    const button = this.rows.get(state.layer)?.get(state.head);
    return button && this.pictures.has(button) ? button.picture : null;
  }

  build() {
    this.rows.clear();
    this.pictures.clear();
    const table = element("div", { class: "grid", role: "grid", "aria-label": "Layers and heads" });
    for (const layer of this.layers) table.append(this.line(layer));
    table.addEventListener("keydown", (event) => this.walk(event));
    const { certified, words, text, absent } = captureSummary(this.app.meta.texts[this.text]);
    const title = element("h2", { text: "Every head" });
    const head = element("div", { class: "grid-head" }, title, badge({ certified, text }, words));
    const note = element("p", { class: "note heads-warning", text: absent, hidden: !absent });
    this.root.replaceChildren(this.above, head, note, table);
    this.resize();
    this.fetch(this.text, this.against);
  }

  /** Thumbnails as large as lets a layer stand in one line. */
  resize() {
    const { root, layers } = this;
    const marks = [...root.querySelectorAll(".grid-label small")].map((one) => one.textContent.length);
    root.parentElement?.style.setProperty("--side", gridShare(layers)); // which changes the width
    const { label, thumb } = gridSizes(layers, root.clientWidth, Math.max(...marks));
    root.style.setProperty("--label", `${label}px`);
    root.style.setProperty("--thumb", `${thumb}px`);
  }

  /**
   * The heads of a layer.
   * @param {Layer} layer
   */
  line(layer) {
    const heads = element("div", { class: "grid-heads", role: "presentation" });
    /** @type {Map<number, Thumbnail>} */
    const buttons = new Map();
    let group = element("div");
    layer.heads.forEach((head, at) => {
      if (at % layer.group === 0) {
        group = element("div", { class: layer.group > 1 ? "group several" : "group", role: "presentation" });
        if (layer.group > 1) group.title = `Key/value head ${at / layer.group}`;
        heads.append(group);
      }
      const button = thumbnail(layer.key, head);
      button.addEventListener("click", () => this.app.set({ layer: layer.key, head }));
      buttons.set(head, button);
      group.append(button);
    });
    this.rows.set(layer.key, buttons);
    return element("div", { class: "grid-row", role: "row" }, rowHeader(layer), heads);
  }

  /**
   * Fetches the thumbnails, layer by layer; less those of another text, if there is one.
   * @param {number} text
   * @param {number} against
   */
  async fetch(text, against) {
    const { app } = this;
    for (const layer of this.layers) {
      let pictures;
      try {
        ({ pictures } = await app.source.thumbs(text, layer.key));
        if (against >= 0)
          pictures = pictureDifference(pictures, (await app.source.thumbs(against, layer.key)).pictures);
      } catch (error) {
        app.status(`The thumbnails of layer ${layer.key} could not be loaded: ${error.message}`);
        continue;
      }
      if (text !== this.text || against !== this.against) return;
      layer.heads.forEach((head, at) => {
        const button = this.rows.get(layer.key)?.get(head);
        if (!button) return;
        const bytes = pictures.subarray(at * settings.thumb ** 2, (at + 1) * settings.thumb ** 2);
        this.pictures.set(button, bytes);
        this.paint(button, bytes);
      });
      this.came();
    }
  }

  /**
   * @param {Thumbnail} button
   * @param {Uint8Array} bytes
   */
  paint({ picture }, bytes) {
    if (this.against < 0) paintThumb(picture, bytes);
    else paintSignedThumb(picture, bytes);
  }

  /**
   * Arrow keys go from head to head and from layer to layer.
   * @param {KeyboardEvent} event
   */
  walk(event) {
    const move = ARROWS[event.key];
    if (!move) return;
    event.preventDefault();
    const { layer, head } = headBeside(this.layers, this.app.state, move);
    this.app.set({ layer, head });
    this.rows.get(layer)?.get(head)?.focus();
  }
}

/**
 * @param {string} layer
 * @param {number} head
 * @returns {Thumbnail}
 */
function thumbnail(layer, head) {
  const picture = element("canvas", { width: settings.thumb, height: settings.thumb });
  const name = `Layer ${layer}, head ${head}`;
  const attributes = { class: "thumb", type: "button", role: "gridcell", tabindex: "-1", title: name };
  const button = element("button", { ...attributes, "aria-label": name }, picture);
  return Object.assign(button, { picture });
}

/** @param {Layer} layer */
function rowHeader(layer) {
  const label = element("div", { class: "grid-label", role: "rowheader", text: layer.key });
  label.append(element("small", { text: maskName(layer) }));
  label.title = `Layer ${layer.key} (${layer.name}): ${layer.mask}. ${layer.evidence.text}`;
  if (!layer.evidence.certified) label.append(element("small", { class: "bad", text: "uncertified" }));
  return label;
}
