// @ts-check
// Under the text: what the model expects after the chosen token, and what follows there.

import { latest } from "../common/controls.js";
import { element } from "../common/dom.js";
import { count, number } from "../common/format.js";
import { likelyTokens } from "../runs/side_by_side.js";
import { quotedToken } from "./ranking.js";

/** The panel; it is hidden where the model makes no predictions. */
export class TextPredictions {
  /** @param {App} app */
  constructor(app) {
    this.app = app;
    this.title = element("h3");
    this.lists = element("div");
    this.sentence = element("p", { class: "small quiet", "aria-live": "polite" });
    this.box = element("section", { class: "text-predictions", "aria-label": "Next-token predictions" });
    const head = element("div", { class: "predictions-head" }, this.title, this.sentence);
    this.box.append(head, this.lists);
    this.shown = "";
    this.fetch = latest((fresh, /** @type {number} */ text, /** @type {number} */ position) =>
      this.find(fresh, text, position),
    );
  }

  /**
   * Shows what is expected after a token; -1 stands for none.
   * @param {number} text
   * @param {number} token
   * @param {boolean} known whether the tokens are those that the model continues
   */
  show(text, token, known) {
    const about = this.app.meta.texts[text].predictions;
    this.box.hidden = !about || !known;
    const name = `${text} ${token} ${this.box.hidden}`;
    if (!about || !known || name === this.shown) return;
    this.shown = name;
    if (token >= 0) this.fetch(text, token);
    else this.invite(about);
  }

  /** @param {NonNullable<TextMeta["predictions"]>} about */
  invite({ loss, tokens }) {
    this.fetch(-1, -1); // an answer that is still to come is not wanted any more
    this.title.textContent = "What the model expects next";
    this.lists.replaceChildren();
    const mean = loss === null ? "" : ` The mean loss over ${count(tokens)} tokens is ${number(loss, 2)}.`;
    this.sentence.textContent = `Select a token to see the likeliest next tokens.${mean}`;
  }

  /**
   * @param {() => boolean} fresh
   * @param {number} text
   * @param {number} position
   */
  async find(fresh, text, position) {
    if (position < 0) return;
    const { lists, sentence } = await likelyTokens(this.app, text, position);
    if (!fresh()) return;
    const tokens = this.app.meta.texts[text].tokens ?? [];
    this.title.textContent = `After ${quotedToken(tokens, position)} the model expects`;
    this.lists.replaceChildren(lists);
    this.sentence.textContent = sentence;
  }
}
