// @ts-check
// The heads that were taken from the gallery to be compared: a line with what they are, and the way to the Compare
// view. They stand in the address (see `compare/pair.js`).

import { element, makeButton } from "../parts/dom.js";
import { formatPair, isInPair, parsePair, toggleInPair } from "../compare/pair.js";

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
    root.toggleAttribute("data-off-paper", true);
    this.words = element("p");
    this.open = makeButton("Open side by side", () => app.set({ view: "compare", x: -1, y: -1, zoom: 0 }));
    this.open.classList.add("strong");
    root.append(
      this.words,
      this.open,
      makeButton("Clear", () => this.set([])),
    );
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
    const { pair, root } = this;
    root.hidden = !pair.length;
    const names = pair.map(({ layer, head }) => `layer ${layer}, head ${head}`);
    const more = pair.length < 2 ? ". Choose a second head, or open it beside another text." : "";
    this.words.textContent = `To compare: ${names.join(" and ")}${more}`;
  }
}
