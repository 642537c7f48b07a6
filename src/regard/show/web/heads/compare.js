// @ts-check
// Two heads, or one head on two texts, side by side: their pictures, and their scores bar against bar.
// What is compared stands in the address (see `pair.js`).

import { known } from "../common/arrays.js";
import { ramp } from "../common/colours.js";
import { latest, select } from "../common/controls.js";
import { contextOf, element } from "../common/dom.js";
import { score } from "../common/format.js";
import { layerOf } from "../common/layers.js";
import { scoreAbout, scoreTitle } from "../common/score_words.js";
import { theme } from "../common/theme.js";
import { topLevel } from "../common/tile.js";
import { formatPair, isInPair, parsePair, toggleInPair } from "./pair.js";
import { endOf, namesOf, scoreBar, sentence } from "./scores.js";

/** @typedef {{ all: HeadScores[], own: HeadScores | undefined }} ComparedScores of a head, and of all of its text */

/** Fills `root` when there is something to compare. */
export class Comparison {
  /**
   * @param {HTMLElement} root
   * @param {App} app
   */
  constructor(root, app) {
    this.root = root;
    this.app = app;
    this.state = app.state;
    this.drawn = "";
    this.draw = latest((fresh) => this.fill(fresh));
  }

  get pair() {
    return parsePair(this.app.meta, this.state.pair);
  }

  /** @param {HeadPlace[]} pair */
  set(pair) {
    this.app.set({ pair: formatPair(pair) });
  }

  /** @param {HeadPlace} head */
  toggle(head) {
    this.set(toggleInPair(this.pair, head));
  }

  /** @param {HeadPlace} head */
  holds(head) {
    return isInPair(this.pair, head);
  }

  /** @param {State} state */
  show(state) {
    this.state = state;
    this.draw();
  }

  /** @param {() => boolean} fresh */
  async fill(fresh) {
    const { pair, app, root } = this;
    root.hidden = !pair.length;
    const key = `${formatPair(pair)} ${theme()} ${app.meta.texts.length}`;
    if (key === this.drawn) return;
    this.drawn = key;
    if (!pair.length) {
      root.replaceChildren();
      return;
    }
    const scores = await Promise.all(pair.map((head) => comparedScores(app.source, head)));
    if (!fresh()) return;
    const clear = element("button", { class: "button", type: "button", text: "Close" });
    clear.addEventListener("click", () => this.set([]));
    const title = element("h2", { text: pair.length === 2 ? "Side by side" : "Compare with…" });
    const sides = pair.map((head, n) => this.side(head, n, pair.length === 1));
    root.replaceChildren(
      element("div", { class: "compare-head" }, title, clear),
      element("div", { class: "compare-body" }, ...sides, scoreTable(scores)),
    );
  }

  /**
   * One of the two heads; if it is alone, with a choice of another text.
   * @param {HeadPlace} head
   * @param {number} n
   * @param {boolean} alone
   */
  side(head, n, alone) {
    const { app } = this;
    const canvas = element("canvas", { class: "compare-picture", role: "img" });
    canvas.setAttribute("aria-label", `Attention map of layer ${head.layer}, head ${head.head}`);
    const layer = layerOf(app.meta, head.text, head.layer);
    const open = element("button", { class: "plain", type: "button", text: "Open in the Map" });
    open.addEventListener("click", () => app.set({ view: "map", ...head, x: -1, y: -1, zoom: 0 }));
    const title = app.runs.titles().find(({ number }) => number === head.text)?.title;
    const caption = element(
      "figcaption",
      {},
      element("h3", { text: `Layer ${head.layer}, head ${head.head}` }),
      element("p", { class: "small quiet", text: title }),
    );
    const size = `${layer.rows.toLocaleString("en")} × ${layer.cols.toLocaleString("en")}`;
    const about = element("p", { class: "small quiet", text: `${layer.mask}, ${size}` });
    const box = element("figure", { class: `compare-side ${"ab"[n]}` }, caption, canvas, about, open);
    if (!layer.evidence.certified)
      box.append(element("p", { class: "small compare-doubt", text: layer.evidence.text }));
    if (alone && app.runs.titles().length > 1) box.append(this.otherTexts(head));
    paintHead(canvas, app.source, head, layer);
    return box;
  }

  /**
   * A choice of another text to compare a head on.
   * @param {HeadPlace} head
   */
  otherTexts(head) {
    const box = select(
      "The same head on",
      (value) => value !== "" && this.set([head, { ...head, text: Number(value) }]),
    );
    const others = this.app.runs.titles().filter(({ number }) => number !== head.text);
    const options = others.map(({ number, title }) => [String(number), title]);
    box.fill([["", "another text…"], ...options], "");
    return box;
  }
}

/**
 * @param {Source} source
 * @param {HeadPlace} place
 * @returns {Promise<ComparedScores>}
 */
async function comparedScores(source, { text, layer, head }) {
  const all = await source.heads(text);
  return { all, own: all.find((one) => one.layer === layer && one.head === head) };
}

/**
 * Paints the whole map at the level of detail at which it is one tile.
 * @param {HTMLCanvasElement} canvas
 * @param {Source} source
 * @param {HeadPlace} head
 * @param {Layer} layer
 */
async function paintHead(canvas, source, { text, layer: key, head }, layer) {
  const z = topLevel(layer.rows, layer.cols);
  const tile = await source.tile(text, key, head, z, 0, 0);
  const { pixels } = ramp();
  canvas.width = tile.cols;
  canvas.height = tile.rows;
  const context = contextOf(canvas);
  const image = context.createImageData(tile.cols, tile.rows);
  const out = new Uint32Array(image.data.buffer);
  // The root, as in the thumbnails: what is faint can be seen as well.
  tile.mass.forEach((mass, n) => {
    if (tile.max[n] >= 0) out[n] = pixels[Math.round(255 * Math.sqrt(Math.min(1, mass)))];
  });
  context.putImageData(image, 0, 0);
}

/**
 * Every score of the compared heads, bar against bar.
 * @param {ComparedScores[]} compared
 */
function scoreTable(compared) {
  const names = namesOf(compared.map(({ own }) => own).filter(known));
  const everyone = compared.flatMap(({ all }) => all);
  const table = element("div", { class: "compare-scores" });
  for (const name of names) {
    const end = endOf(name, everyone);
    const lines = compared.map(({ own }, n) => comparedLine(name, own?.scores[name], end, "ab"[n]));
    table.append(
      element(
        "div",
        { class: "compare-row" },
        element("span", { class: "score-name", text: scoreTitle(name), title: scoreAbout(name) }),
        element("div", {}, ...lines),
      ),
    );
  }
  if (compared.length < 2) {
    const text = "Choose a second head below, or the same head on another text.";
    table.append(element("p", { class: "note", text }));
  }
  return table;
}

/**
 * @param {string} name
 * @param {Score | undefined} one
 * @param {number} end
 * @param {string} kind
 */
function comparedLine(name, one, end, kind) {
  if (!one) return element("span", { class: "compare-line" });
  return element(
    "span",
    { class: "compare-line", title: sentence(name, one) },
    scoreBar(one, end, kind),
    element("span", { class: "score-value", text: score(name, one.value) }),
  );
}
