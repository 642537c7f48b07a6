// @ts-check
// All layers × heads as small maps: choose one. Heads that share a key/value head stand together.

import { ARROWS, badge, element, makeButton, reveal } from "../../parts/dom.js";
import { labelWords } from "../../parts/head_words.js";
import { ProgressPanel } from "../../parts/progress_panel.js";
import { LayerQueue } from "../../data/layer_queue.js";
import { headBeside, maskName } from "../../data/layers.js";
import { settings } from "../../data/settings.js";
import { paintHead } from "../../parts/map_scale.js";
import { captureSummary, columnNumbers, gridSizes } from "./thumbnail_grid.js";

/** @typedef {HTMLButtonElement & { picture: HTMLCanvasElement, layer: Layer, head: number }} Thumbnail */

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
    /** @type {Map<string, Thumbs>} */
    this.thumbs = new Map(); // of the layers that have come, by their keys
    this.text = -1;
    this.kind = "linear"; // of the colour scale, or "log"
    this.whole = false; // whether the colours end at 1
    this.columns = 0; // heads in one line
    this.numbers = element("div.grid-row.grid-numbers", { "aria-hidden": "true" });
    new ResizeObserver(() => this.text >= 0 && this.resize()).observe(root);
    addEventListener("regard-theme", () => this.repaint());
    this.progress = new ProgressPanel("in-list");
    this.queue = new LayerQueue(
      (layer) => this.fetch(this.text, layer),
      (queue) => this.progress.followWork(queue, "Drawing every head", "layers", "the pictures of "),
    );
  }

  repaint() {
    for (const [key, thumbs] of this.thumbs) this.paint(key, thumbs);
  }

  /** Gives the thumbnails the colour scale of the large map. */
  recolour() {
    const { scale, colourTop } = this.app.state;
    const whole = colourTop === "one";
    if (scale === this.kind && whole === this.whole) return;
    Object.assign(this, { kind: scale, whole });
    this.repaint();
  }

  get layers() {
    return this.app.meta.texts[this.text].layers;
  }

  show() {
    const { state } = this.app;
    if (state.text !== this.text || this.rows.size !== this.layers.length) {
      this.text = state.text;
      this.build();
    }
    this.queue.chosen = state.layer;
    for (const [key, buttons] of this.rows) {
      for (const [number, button] of buttons) {
        const chosen = key === state.layer && number === state.head;
        button.setAttribute("aria-selected", String(chosen));
        button.tabIndex = chosen ? 0 : -1;
        if (chosen) reveal(button, this.root);
        markCut(button, this.app.runs.has({ kind: "head", layer: key, head: number }));
      }
    }
  }

  /** The thumbnail of the chosen head, as a canvas, if it has come. */
  get chosen() {
    const { layer, head } = this.app.state;
    return (this.thumbs.has(layer) && this.rows.get(layer)?.get(head)?.picture) || null;
  }

  build() {
    this.rows.clear();
    this.thumbs.clear();
    const lines = this.layers.map((layer) => this.line(layer));
    const table = element("div.grid", { role: "grid", "aria-label": "Layers and heads" }, ...lines);
    this.columns = 0;
    table.addEventListener("keydown", (event) => this.walk(event));
    for (const kind of ["pointerover", "focusin"])
      table.addEventListener(kind, (event) => this.describe(event.target));
    const { certified, words, text, absent } = captureSummary(this.app.meta.texts[this.text]);
    const doubt = certified ? null : badge({ certified, text }, words); // the notes say what is certified
    const head = element("div.grid-head", element("h2", "Every head"), doubt);
    const note = element("p.note.heads-warning", { hidden: !absent }, absent);
    const left = leftOutNote(this.app.meta, this.layers);
    this.root.replaceChildren(this.above, head, this.progress.box, note, left, this.numbers, table);
    this.resize();
    this.queue.start([...this.rows.keys()], this.app.state.layer);
  }

  /** Thumbnails as large as lets a layer stand in one line, or in a few of the same length. */
  resize() {
    const { root, layers } = this;
    const marks = [...root.querySelectorAll(".grid-label small")].map((one) => one.textContent.length);
    const { clientWidth: width, clientHeight: height } = root;
    const { label, thumb, columns } = gridSizes(layers, width, height, Math.max(...marks));
    root.style.setProperty("--label", `${label}px`);
    root.style.setProperty("--thumb", `${thumb}px`);
    root.style.setProperty("--columns", String(columns));
    if (columns === this.columns) return;
    this.columns = columns;
    const numbers = columnNumbers(layers, columns).map((number) => element("span", number));
    this.numbers.hidden = numbers.length === 0;
    this.numbers.replaceChildren(element("span"), element("div.grid-heads", ...numbers));
    for (const layer of layers) this.numberLines(layer);
  }

  /**
   * Writes the number of the first head before each line of a layer, if it has several.
   * @param {Layer} layer
   */
  numberLines({ key, heads, group }) {
    const { columns } = this;
    const line = this.rows.get(key)?.get(heads[0])?.closest(".grid-heads");
    if (!(line instanceof HTMLElement)) return;
    line.querySelectorAll(".grid-start").forEach((start) => start.remove());
    const wrapped = heads.length > columns;
    line.classList.toggle("wrapped", wrapped);
    line.style.setProperty("--together", String(Math.min(group, columns)));
    for (let at = 0; wrapped && at < heads.length; at += columns) {
      const start = element("span.grid-start", { "aria-hidden": "true" }, heads[at]);
      start.style.gridRow = String(1 + at / columns);
      line.append(start);
    }
  }

  /**
   * The heads of a layer.
   * @param {Layer} layer
   */
  line(layer) {
    /** @type {Map<number, Thumbnail>} */
    const buttons = new Map(layer.heads.map((head) => [head, thumbnail(layer, head, this.app)]));
    const groups = Object.values(Object.groupBy(buttons, (_, at) => Math.floor(at / layer.group)));
    const kind = layer.group > 1 ? "group several" : "group";
    const heads = groups.map((group = [], n) => {
      const title = layer.group > 1 ? `Key/value head ${n}` : null;
      return element(
        "div",
        { class: kind, role: "presentation", title },
        ...group.map(([, button]) => button),
      );
    });
    this.rows.set(layer.key, buttons);
    const row = { class: "grid-row", role: "row", "aria-label": `Layer ${layer.key}` };
    const line = element("div.grid-heads", { role: "presentation" }, ...heads);
    return element("div", row, rowHeader(layer, this.layers), line);
  }

  /**
   * Fetches the thumbnails of a layer.
   * @param {number} text
   * @param {string} key
   */
  async fetch(text, key) {
    const { app } = this;
    try {
      const thumbs = await app.source.thumbs(text, key);
      if (text !== this.text) return;
      this.thumbs.set(key, thumbs);
      this.paint(key, thumbs);
      this.came();
    } catch (error) {
      if (error.name !== "AbortError")
        app.status(`The thumbnails of layer ${key} could not be loaded: ${error.message}`);
    }
  }

  /**
   * @param {string} key of a layer
   * @param {Thumbs} thumbs
   */
  paint(key, thumbs) {
    const { kind, whole } = this;
    for (const { picture, layer, head, classList } of this.rows.get(key)?.values() ?? []) {
      paintHead(picture, thumbs, layer, head, { kind, whole });
      classList.remove("waiting");
    }
  }

  /**
   * Says in the tooltip of a thumbnail what its head does.
   * @param {EventTarget | null} target
   */
  async describe(target) {
    const { app, text } = this;
    const found = target instanceof Element ? target.closest(".thumb") : null;
    if (!found) return;
    const button = /** @type {Thumbnail} */ (found);
    const rows = await app.headRows.layer(text, button.layer.key).catch(() => []); // the caption says what failed
    const row = rows.find(({ head }) => head === button.head);
    if (!row || text !== this.text) return;
    button.title = `Layer ${row.layer}, head ${row.head}: ${labelWords(row)}. ${row.sentence ?? ""}`;
  }

  /**
   * Arrow keys go from head to head and from line to line.
   * @param {KeyboardEvent} event
   */
  walk(event) {
    const move = ARROWS[event.key];
    if (!move) return;
    event.preventDefault();
    const { layer, head } = headBeside(this.layers, this.app.state, move, this.columns);
    this.app.set({ layer, head });
    this.rows.get(layer)?.get(head)?.focus();
  }
}

/**
 * @param {Layer} layer
 * @param {number} head
 * @param {App} app
 * @returns {Thumbnail}
 */
function thumbnail(layer, head, app) {
  const picture = element("canvas", { width: settings.thumb, height: settings.thumb });
  const name = `Layer ${layer.key}, head ${head}`;
  const own = { class: "thumb waiting", role: "gridcell", tabindex: "-1", title: name, "aria-label": name };
  const button = makeButton("", () => app.set({ layer: layer.key, head }), own, picture);
  return Object.assign(button, { picture, layer, head });
}

/**
 * Marks the thumbnail of a head that is cut in the run that is shown.
 * @param {Thumbnail} button
 * @param {boolean} isCut
 */
function markCut(button, isCut) {
  if (button.classList.contains("cut") === isCut) return;
  const { layer, head } = button;
  const name = `Layer ${layer.key}, head ${head}${isCut ? ", cut in this run" : ""}`;
  button.classList.toggle("cut", isCut);
  button.setAttribute("aria-label", name);
}

/**
 * @param {Layer} layer
 * @param {Layer[]} layers of the text: a mask that all of them have stands in the notes alone
 */
function rowHeader(layer, layers) {
  const mask = maskName(layer);
  const { certified, text } = layer.evidence;
  return element(
    "div.grid-label",
    { role: "rowheader", title: `Layer ${layer.key} (${layer.name}): ${mask}. ${text}` },
    layer.key,
    layers.some((one) => maskName(one) !== mask) ? element("small", mask) : null,
    certified ? null : element("small.bad", "uncertified"),
  );
}

/**
 * Which heads the file leaves out to stay small.
 * @param {Meta} meta
 * @param {Layer[]} layers
 */
function leftOutNote({ left_out: left = [] }, layers) {
  const kept = layers.reduce((sum, { heads }) => sum + heads.length, 0);
  const summary = `The ${kept} of ${kept + left.length} heads that tell most; the others would make the file too large`;
  return element(
    "details.note.small.left-out-heads",
    { hidden: !left.length },
    element("summary", summary),
    `Left out: ${left.join(", ")}.`,
  );
}
