// @ts-check
// The tokens beside the patches, as buttons above the picture: CLS and registers, or the words of a text. They stand
// apart from the picture, so that what they receive does not hide what patches receive.

import { makeScale } from "../parts/colours.js";
import { element, makeButton } from "../parts/dom.js";
import { percent } from "../data/format.js";
import { short, visible } from "../data/tokens.js";
import { heatColour } from "./heat.js";

const MOST = 600; // tokens of a text that are written

/** @typedef {HTMLButtonElement & { token: number }} Chip */

/** A row of buttons for the tokens that can be chosen, and another for those that only receive. */
export class TokenChips {
  /** @param {(token: number) => void} choose */
  constructor(choose) {
    this.choose = choose;
    this.mine = element("div", { class: "chips", role: "group", "aria-label": "Tokens beside the patches" });
    this.theirs = element("div", { class: "chips theirs" });
    this.box = element("div", { class: "chip-rows" }, this.mine, this.theirs);
    /** @type {Chip[]} */
    this.chips = [];
    /** @type {Map<number, HTMLElement>} */
    this.receivers = new Map();
  }

  /**
   * Writes other tokens. `others` are the names of those that only receive, null if they are the same.
   * @param {string[]} names
   * @param {number[]} tokens
   * @param {string[] | null} others
   * @param {number[]} receiving
   */
  write(names, tokens, others, receiving) {
    this.chips = tokens.slice(0, MOST).map((token) => {
      const text = names[token] ?? `token ${token}`;
      const look = { class: "chip", title: visible(text.slice(0, 80)) };
      const chip = makeButton("", () => this.choose(token), look, ...chipParts(text));
      return Object.assign(chip, { token });
    });
    this.mine.replaceChildren(...this.chips);
    this.receivers = new Map();
    for (const token of others ? receiving.slice(0, MOST) : []) {
      const text = others?.[token] ?? `token ${token}`;
      this.receivers.set(token, element("span", { class: "chip" }, ...chipParts(text)));
    }
    this.theirs.replaceChildren(...this.receivers.values());
    this.box.hidden = !this.chips.length && !this.receivers.size;
  }

  /**
   * Shows what each receives. If the axes are not the `same`, the buttons receive nothing.
   * @param {Heat} heat
   * @param {boolean} same
   * @param {number} pinned
   */
  paint(heat, same, pinned) {
    const shade = makeScale({ scale: "linear", top: Math.max(heat.top, 0.25), bottom: 1e-4 });
    const fill = (/** @type {HTMLElement} */ chip, /** @type {number} */ token) => {
      const weight = heat.weights[token - heat.from];
      const [, number] = chip.children;
      number.textContent = weight === undefined ? "" : percent(weight);
      chip.style.setProperty("--heat", weight === undefined ? "transparent" : heatColour(shade.at(weight)));
    };
    for (const chip of this.chips) {
      if (same) fill(chip, chip.token);
      chip.classList.toggle("at", chip.token === heat.token);
      chip.setAttribute("aria-pressed", String(chip.token === pinned));
    }
    for (const [token, chip] of this.receivers) fill(chip, token);
  }
}

/**
 * A token's name, and room for what it receives.
 * @param {string} text
 */
function chipParts(text) {
  return [element("span", { text: short(text, 18) }), element("span", { class: "weight" })];
}
