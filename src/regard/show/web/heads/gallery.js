// @ts-check
// Every head as a card, with its picture and all its scores. A card is built when it comes near the window: a model
// may have a thousand heads.

import { formatPair } from "../compare/pair.js";
import { empty } from "../parts/controls.js";
import { element, onKeys } from "../parts/dom.js";
import { layerOf } from "../data/layers.js";
import { WHOLE } from "../data/settings.js";
import { paintHead } from "../parts/map_scale.js";
import { headCard } from "./card.js";
import { galleryTarget, headName } from "./order.js";
import { endOf, namesOf } from "./scores.js";

const NEAR = "600px"; // of the window within which cards are built
const FEW = 48; // heads whose cards are all built at once
const CONTROLS = /** @type {const} */ (["button", "take", "cut"]);

export class Gallery {
  /** @param {App} app */
  constructor(app) {
    this.app = app;
    this.list = element("ul.gallery", { "aria-label": "Heads" });
    /** @type {Map<string, HTMLLIElement>} */
    this.slots = new Map(); // where a card is or will be, by the head's name
    /** @type {Map<string, HeadCard>} */
    this.cards = new Map(); // those that are built
    /** @type {Map<string, HeadScores>} */
    this.heads = new Map();
    /** @type {Record<string, number>} */
    this.ends = {}; // of the bars of each score
    this.text = -1; // that the cards are of
    this.sorted = ""; // the score that they are sorted by
    this.current = ""; // the card that the keyboard is at
    this.observer = new IntersectionObserver((entries) => this.see(entries), { rootMargin: NEAR });
    this.listen();
    addEventListener("regard-theme", () => this.cards.forEach((card) => this.paint(card)));
  }

  /**
   * Forgets what it shows.
   * @param {number} text
   */
  clear(text) {
    this.observer.disconnect();
    for (const part of [this.slots, this.cards, this.heads]) part.clear();
    this.text = text;
    this.list.replaceChildren();
  }

  /**
   * Shows some heads in this order.
   * @param {HeadScores[]} all that have come
   * @param {HeadScores[]} shown
   * @param {string} sorted a score's name or ""
   */
  show(all, shown, sorted) {
    this.sorted = sorted;
    for (const row of all) this.heads.set(headName(row), row);
    this.ends = Object.fromEntries(namesOf(all).map((name) => [name, endOf(name, all)]));
    const names = shown.map(headName);
    const wanted = names.map((name) => this.slot(name));
    const same =
      wanted.length === this.list.children.length &&
      wanted.every((slot, n) => slot === this.list.children[n]);
    const { focused } = this;
    if (!same) this.list.replaceChildren(...wanted);
    if (!same && focused) this.focus(focused); // which it loses when it is moved
    if (!shown.length) this.list.append(empty("No head matches these filters."));
    if (names.length <= FEW) names.forEach((name) => this.build(name));
    if (!names.includes(this.current)) this.current = names[0] ?? "";
    this.cards.forEach((card) => this.mark(card));
    this.reach();
  }

  /**
   * The place of a head's card.
   * @param {string} name
   */
  slot(name) {
    const slot = this.slots.get(name) ?? element("li.card", { "data-name": name });
    if (!this.slots.has(name)) this.observer.observe(slot);
    this.slots.set(name, slot);
    return slot;
  }

  /** @param {IntersectionObserverEntry[]} entries */
  see(entries) {
    for (const { target, isIntersecting } of entries)
      if (isIntersecting) this.build(target.getAttribute("data-name") ?? "");
  }

  /**
   * The card of a head, built if it is not yet.
   * @param {string} name
   */
  build(name) {
    const [known, slot, row] = [this.cards.get(name), this.slots.get(name), this.heads.get(name)];
    if (known || !slot || !row) return known;
    const { app, text } = this;
    this.observer.unobserve(slot);
    const { layer, head } = row;
    const card = headCard(app, row, layerOf(app.meta, text, layer), this.ends, slot, {
      open: () => app.set({ view: "map", layer, head, ...WHOLE }),
      compare: () => this.compare({ text, layer, head }),
    });
    this.cards.set(name, card);
    this.mark(card);
    this.paint(card);
    this.reach();
    return card;
  }

  /**
   * By which score it is sorted.
   * @param {HeadCard} card
   */
  mark({ lines }) {
    for (const line of lines.children)
      line.classList.toggle("sorted", line.getAttribute("data-name") === this.sorted);
  }

  /**
   * Opens the Compare view with a head, beside the chosen one if it is another.
   * @param {HeadPlace} place
   */
  compare(place) {
    const { text, layer, head } = this.app.state;
    const isChosen = layer === place.layer && head === place.head;
    const pair = formatPair(isChosen ? [place] : [{ text, layer, head }, place]);
    this.app.set({ view: "compare", pair, ...WHOLE });
  }

  /** @param {HeadCard} card */
  async paint({ canvas, head }) {
    const { app, text } = this;
    const layer = layerOf(app.meta, text, head.layer);
    paintHead(canvas, await app.source.thumbs(text, head.layer), layer, head.head);
  }

  /** The control of the current card that has the focus, if one has. */
  get focused() {
    const card = this.cards.get(this.current);
    return CONTROLS.find((name) => card?.[name] === document.activeElement);
  }

  /** The head and the control of its card that has the focus; null if none has. */
  focusedPlace() {
    const { focused, current } = this;
    return focused ? { name: current, control: focused } : null;
  }

  /**
   * Gives the focus to a control of a head's card; says whether it is there.
   * @param {NonNullable<ReturnType<Gallery["focusedPlace"]>>} place
   */
  focusPlace({ name, control }) {
    if (!this.slots.has(name)) return false;
    this.current = name;
    this.reach();
    this.focus(control);
    return true;
  }

  /**
   * Gives the focus to a control of the current card.
   * @param {typeof CONTROLS[number]} control
   */
  focus(control) {
    this.build(this.current)?.[control].focus({ preventScroll: true });
  }

  /** Only the card that the keyboard is at can be reached with Tab. */
  reach() {
    for (const [name, { button, take, cut }] of this.cards)
      button.tabIndex = take.tabIndex = cut.tabIndex = name === this.current ? 0 : -1;
  }

  listen() {
    this.list.addEventListener("focusin", (event) => {
      const slot = event.target instanceof Element ? event.target.closest(".card") : null;
      this.current = slot?.getAttribute("data-name") ?? this.current;
      this.reach();
    });
    onKeys(this.list, (key) => this.press(key));
  }

  /**
   * Does what a key asks for; says whether there was something to do.
   * @param {string} key
   */
  press(key) {
    const items = [...this.list.querySelectorAll("li")];
    const at = items.findIndex((item) => item === this.slots.get(this.current));
    const wide = Math.max(1, items.filter((item) => item.offsetTop === items[0].offsetTop).length);
    const to = galleryTarget(key, at, wide, items.length);
    if (to !== null) {
      const next = this.build(items[to].getAttribute("data-name") ?? "");
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
