// @ts-check
// Under the text: what the model expects after the chosen token, and what follows there.

import { latest } from "../parts/controls.js";
import { element } from "../parts/dom.js";
import { count, number } from "../data/format.js";
import { likelyTokens } from "../parts/prediction_list.js";
import { quotedToken } from "./ranking.js";

/** The panel; it is hidden where the model makes no predictions. */
export class TextPredictions {
  /** @param {App} app */
  constructor(app) {
    this.app = app;
    this.title = element("h3");
    this.lists = element("div");
    this.sentence = element("p.small.quiet", { "aria-live": "polite" });
    this.box = element("section.text-predictions", { "aria-label": "Next-token predictions" });
    this.mean = element("p.small.quiet.push");
    const head = element("div.predictions-head", this.title, this.sentence, this.mean);
    this.box.append(head, this.lists);
    this.shown = "";
    this.fetch = latest(this.find.bind(this));
  }

  /**
   * Shows what is expected after a token; what stood there stays for -1.
   * @param {number} text
   * @param {number} token
   * @param {boolean} known whether the tokens are those that the model continues
   */
  show(text, token, known) {
    const about = this.app.meta.texts[text].predictions;
    this.box.hidden = !about || !known;
    const name = `${text} ${token} ${this.box.hidden}`;
    if (!about || !known || token < 0 || name === this.shown) return;
    this.shown = name;
    const { loss, tokens } = about;
    this.mean.textContent = loss === null ? "" : `Mean loss over ${count(tokens)} tokens: ${number(loss, 2)}`;
    this.fetch(text, token);
  }

  /**
   * @param {() => boolean} fresh
   * @param {number} text
   * @param {number} position
   */
  async find(fresh, text, position) {
    const { lists, sentence } = await likelyTokens(this.app, text, position);
    if (!fresh()) return;
    const tokens = this.app.meta.texts[text].tokens ?? [];
    this.title.textContent = `After ${quotedToken(tokens, position)} the model expects`;
    this.lists.replaceChildren(lists);
    this.sentence.textContent = sentence;
  }
}
