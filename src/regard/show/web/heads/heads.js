// @ts-check
// The gallery: every head's picture with its scores, to sort, to filter, and to hold two against each other.

import { paintThumb } from "../common/colours.js";
import { empty, latest, select } from "../common/controls.js";
import { choice, element } from "../common/dom.js";
import { some } from "../common/format.js";
import { absences, doubts, layerOf } from "../common/layers.js";
import { scoreTitle } from "../common/score_words.js";
import { settings } from "../common/settings.js";
import { theme } from "../common/theme.js";
import { headCard } from "./card.js";
import { Comparison } from "./compare.js";
import { filterHeads, galleryTarget, headName, labelOptions, sortHeads } from "./order.js";
import { endOf, namesOf } from "./scores.js";

/**
 * @param {HTMLElement} root
 * @param {App} app
 * @returns {View}
 */
export function heads(root, app) {
  const gallery = new Gallery(root, app);
  return { show: (state) => gallery.show(state), hide() {} };
}

class Gallery {
  /**
   * @param {HTMLElement} root
   * @param {App} app
   */
  constructor(root, app) {
    this.root = root;
    this.app = app;
    this.state = app.state;
    this.controls = makeGalleryControls(app);
    this.warning = element("p", { class: "note heads-warning" });
    this.list = element("ul", { class: "gallery", "aria-label": "Heads" });
    /** @type {Map<string, HeadCard>} */
    this.cards = new Map(); // by the head's name
    /** @type {HeadScores[]} */
    this.heads = []; // every head of the text
    this.text = -1; // that the cards are of
    this.theme = ""; // that the pictures are in
    this.current = ""; // the card that the keyboard is at
    const pair = element("section", { class: "compare", "aria-label": "Two heads side by side" });
    this.comparison = new Comparison(pair, app);
    this.open = latest((fresh) => this.fetch(fresh));
    const column = element(
      "div",
      { class: "column wide" },
      pair,
      this.warning,
      this.list,
      help(app.runs.available),
    );
    root.append(this.controls.bar, element("div", { class: "scroll" }, column));
    this.listen();
  }

  /** @param {State} state */
  show(state) {
    this.state = state;
    if (this.text !== state.text || !this.cards.size) this.open();
    else {
      this.arrange();
      this.paint();
    }
    this.comparison.show(state);
    for (const { take, head } of this.cards.values()) {
      const taken = this.comparison.holds({ text: this.text, layer: head.layer, head: head.head });
      take.setAttribute("aria-pressed", String(taken));
      take.textContent = taken ? "Comparing" : "Compare";
    }
  }

  /**
   * Fetches the scores of the text's heads and shows them.
   * @param {() => boolean} fresh
   */
  async fetch(fresh) {
    this.text = this.state.text;
    const focused = this.focusedControl();
    this.root.classList.add("waiting");
    this.list.replaceChildren(empty("Computing the scores of every head…"));
    this.controls.number.textContent = "";
    let scores;
    try {
      scores = await this.app.source.heads(this.text);
    } catch (error) {
      if (fresh()) this.list.replaceChildren(empty(`The scores could not be loaded. ${error.message}`));
      return;
    }
    if (!fresh()) return;
    this.root.classList.remove("waiting");
    this.heads = scores;
    this.build();
    this.arrange();
    if (focused) this.cards.get(this.current)?.[focused].focus(); // the same head, in another run
    this.paint(fresh);
  }

  /** The control of the current card that has the focus, if one has. */
  focusedControl() {
    const card = this.cards.get(this.current);
    const controls = /** @type {const} */ (["button", "take", "cut"]);
    return controls.find((name) => card?.[name] === document.activeElement);
  }

  /** Makes a card for every head. */
  build() {
    const { app, text, heads } = this;
    this.cards.clear();
    this.theme = "";
    const ends = Object.fromEntries(namesOf(heads).map((name) => [name, endOf(name, heads)]));
    for (const scores of heads) {
      const { layer, head } = scores;
      const card = headCard(app, scores, layerOf(app.meta, text, layer), ends);
      const whole = { x: -1, y: -1, zoom: 0 };
      card.button.addEventListener("click", () => app.set({ view: "map", layer, head, ...whole }));
      card.take.addEventListener("click", () => this.comparison.toggle({ text, layer, head }));
      this.cards.set(headName(scores), card);
    }
  }

  /**
   * Paints the pictures, layer by layer as they come.
   * @param {() => boolean} [fresh]
   */
  async paint(fresh = () => true) {
    const { app, text } = this;
    const name = theme();
    if (this.theme === name) return;
    this.theme = name;
    for (const layer of app.meta.texts[text].layers) {
      let thumbs;
      try {
        thumbs = await app.source.thumbs(text, layer.key);
      } catch (error) {
        app.status(`The thumbnails of layer ${layer.key} could not be loaded: ${error.message}`);
        continue;
      }
      if (!fresh() || this.theme !== name) return;
      layer.heads.forEach((head, at) => {
        const card = this.cards.get(`${layer.key}/${head}`);
        const bytes = thumbs.pictures.subarray(at * settings.thumb ** 2, (at + 1) * settings.thumb ** 2);
        if (card) paintThumb(card.canvas, bytes, name);
      });
    }
  }

  /** Puts the cards that are asked for in the order that is asked for. */
  arrange() {
    const { heads, state, list, cards } = this;
    const text = this.app.meta.texts[this.text];
    const by = this.controls.fill(heads, text.layers, state);
    const shown = sortHeads(filterHeads(heads, state), by, state.order);
    const names = shown.map(headName);
    const wanted = names.map((name) => /** @type {HeadCard} */ (cards.get(name)).card);
    const same =
      wanted.length === list.children.length && wanted.every((card, n) => card === list.children[n]);
    if (!same) list.replaceChildren(...wanted); // what stays where it is keeps the focus
    list.classList.toggle("pictures-only", state.detail === "pictures");
    for (const { lines } of cards.values()) {
      for (const line of lines.children)
        line.classList.toggle("sorted", line.getAttribute("data-name") === by);
    }
    if (!shown.length) list.append(empty("No head matches these filters."));
    const all = some(heads.length, "head");
    this.controls.number.textContent = shown.length === heads.length ? all : `${shown.length} of ${all}`;
    this.warning.textContent = [doubts(text.layers), absences(text.missing)].join(" ").trim();
    this.warning.hidden = !this.warning.textContent;
    if (!names.includes(this.current)) this.current = names[0] ?? "";
    this.reach();
  }

  /** Only the card that the keyboard is at can be reached with Tab. */
  reach() {
    for (const [key, { button, take, cut }] of this.cards)
      button.tabIndex = take.tabIndex = cut.tabIndex = key === this.current ? 0 : -1;
  }

  listen() {
    this.list.addEventListener("focusin", (event) => {
      const target = /** @type {Node} */ (event.target);
      for (const [key, { card }] of this.cards) if (card.contains(target)) this.current = key;
      this.reach();
    });
    this.list.addEventListener("keydown", (event) => {
      if (event.altKey || event.ctrlKey || event.metaKey) return;
      if (this.press(event.key)) event.preventDefault();
    });
  }

  /**
   * Does what a key asks for; says whether there was something to do.
   * @param {string} key
   */
  press(key) {
    const items = [...this.list.querySelectorAll("li")];
    const at = items.findIndex((item) => item === this.cards.get(this.current)?.card);
    const wide = Math.max(1, items.filter((item) => item.offsetTop === items[0].offsetTop).length);
    const to = galleryTarget(key, at, wide, items.length);
    if (to !== null) {
      const next = [...this.cards.values()].find(({ card }) => card === items[to]);
      next?.button.focus();
      next?.card.scrollIntoView({ block: "nearest" });
      return true;
    }
    const card = this.cards.get(this.current);
    const button = { c: card?.take, x: card?.cut }[key.toLowerCase()];
    if (!button || button.hidden) return false;
    button.click();
    return true;
  }
}

/** @param {App} app */
function makeGalleryControls(app) {
  const sort = select("Sort by", (value) => app.set({ sort: value }));
  const orders = { high: "highest first", low: "lowest first" };
  const order = choice("Order", "heads-order", orders, (value) => app.set({ order: value }));
  const label = select("Label", (value) => app.set({ label: value }));
  const layer = select("Layer", (value) => app.set({ layerFilter: value }));
  const details = { scores: "scores", pictures: "pictures" };
  const detail = choice("Show", "heads-detail", details, (value) => app.set({ detail: value }));
  const number = element("p", { class: "small quiet", "aria-live": "polite" });
  return {
    bar: element("div", { class: "bar-of-choices" }, sort, order, label, layer, detail, number),
    number, // of heads that are shown
    /**
     * Offers what there is; returns the score that the heads are sorted by, or "".
     * @param {HeadScores[]} heads
     * @param {Layer[]} layers
     * @param {State} state
     */
    fill(heads, layers, state) {
      const names = namesOf(heads);
      const by = names.includes(state.sort) ? state.sort : "";
      const scores = names.map((name) => [name, scoreTitle(name)]);
      sort.fill([["place", "position in the model"], ...scores], by || "place");
      label.fill(labelOptions(heads), state.label);
      layer.fill([["all", "all"], ...layers.map((one) => [one.key, one.key])], state.layerFilter);
      order.value = state.order;
      order.hidden = !by;
      detail.value = state.detail;
      return by;
    },
  };
}

/**
 * What the marks on the bars and the keys mean.
 * @param {boolean} cuts whether heads can be cut
 */
function help(cuts) {
  return element("p", {
    class: "note",
    text:
      "The filled tick is the uniform baseline, the hollow tick the score on shuffled tokens, the thin line the 95% " +
      "interval. Use the arrow keys to move from head to head, Enter to open one in the Map, and C to compare it." +
      (cuts ? " X cuts it: the model runs again without its output." : ""),
  });
}
