// @ts-check
// The notes beside the text: the chosen token, the list of the strongest, and what the list leaves out.

import { rampBar } from "../common/controls.js";
import { element } from "../common/dom.js";
import { weight } from "../common/format.js";
import { short, visible } from "../common/tokens.js";
import { rankingNotes } from "./ranking.js";

/**
 * @typedef {object} TokenFindings what there is to say of the chosen token
 * @property {string[]} tokens
 * @property {Shaded} shaded
 * @property {Ranking} ranking
 * @property {boolean} looking
 * @property {boolean} pinned
 * @property {string} scope in words
 * @property {string} doubt of the layers that are shown, or ""
 */

/** The notes; `choose(token)` is called when the reader takes one from the list. */
export class TextNotes {
  /** @param {(token: number) => void} choose */
  constructor(choose) {
    this.choose = choose;
    this.chosen = element("div", { class: "notes-block" });
    this.title = element("h3");
    this.list = element("ol", { class: "ranked" });
    this.ranking = element("div", { class: "notes-block" }, this.title, this.list);
    this.ramp = rampBar();
    this.note = element("p", { class: "small quiet text-note" });
    this.box = element(
      "aside",
      { class: "text-notes", "aria-label": "Selected token" },
      this.chosen,
      this.ranking,
      this.ramp,
      this.note,
    );
  }

  /** While no token is chosen. */
  clear() {
    this.ranking.hidden = this.ramp.hidden = true;
    this.list.replaceChildren();
    this.note.textContent = "";
    this.chosen.replaceChildren(element("p", { class: "quiet", text: "No token is selected." }));
  }

  /** @param {TokenFindings} findings */
  show({ tokens, shaded, ranking, looking, pinned, scope, doubt }) {
    this.ranking.hidden = this.ramp.hidden = false;
    this.chosen.replaceChildren(
      element("h3", { text: `Token ${shaded.token}${pinned ? ", pinned" : ""}` }),
      element("p", { class: "big-token token", text: visible((tokens[shaded.token] ?? "").slice(0, 60)) }),
      element("p", { class: "small quiet", text: scope }),
    );
    this.title.textContent = looking ? "Attends most to" : "Attended to most by";
    this.list.replaceChildren(
      ...ranking.best.map(({ token, w }) => this.line(token, tokens[token] ?? "", w, w / shaded.top)),
    );
    this.ramp.show("0", weight(shaded.top));
    this.note.textContent = [...rankingNotes(tokens, shaded, ranking, looking), doubt].join(" ").trimEnd();
  }

  /**
   * One line of the list.
   * @param {number} token
   * @param {string} name
   * @param {number} w
   * @param {number} share of the greatest weight
   */
  line(token, name, w, share) {
    const button = element(
      "button",
      { type: "button", title: `Go to token ${token}` },
      element("span", { class: "place", text: token }),
      element("span", { class: "token", text: short(name, 24) }),
      element("span", { class: "weight", text: weight(w) }),
    );
    button.style.setProperty("--share", String(share));
    button.addEventListener("click", () => this.choose(token));
    return element("li", {}, button);
  }
}
