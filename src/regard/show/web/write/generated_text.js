// @ts-check
// Opens what was generated in Map and Text: the model reads the same tokens once more, all at once.

import { element, makeButton } from "../parts/dom.js";
import { openText } from "../reading/text_choice.js";

/** The buttons; they are hidden until there is something to open. */
export class GeneratedText {
  /** @param {App} app */
  constructor(app) {
    this.app = app;
    this.prompt = "";
    /** @type {number[]} */
    this.ids = []; // of the generated tokens
    this.number = -1; // of the text, once it was read
    /** @type {AbortController | null} */
    this.running = null; // what stops it
    this.said = element("span.note", { "aria-live": "polite" });
    const map = makeButton("Open in Map", () => this.open("map"));
    const text = makeButton("Open in Text", () => this.open("text"));
    this.box = element("div.fields.generated-text", { hidden: true }, map, text, this.said);
  }

  /** @param {string} prompt of a generation that begins */
  begin(prompt) {
    this.stop();
    this.prompt = prompt;
    this.number = -1;
    this.box.hidden = true;
    this.said.textContent = "";
  }

  /** @param {GenerationStep[]} steps of a generation that has ended */
  offer(steps) {
    this.ids = steps.map(({ token_id: id }) => id);
    this.box.hidden = !steps.length || (!this.app.meta.can.capture && !this.isHeld);
  }

  /** Whether the text is on the page: it may have been removed again. */
  get isHeld() {
    return this.app.meta.texts[this.number]?.removed === false;
  }

  /** @param {"map" | "text"} view */
  async open(view) {
    if (this.running) return;
    this.running = new AbortController();
    const { app, prompt, ids } = this;
    try {
      if (!this.isHeld) {
        this.said.textContent = "The model reads what it wrote…";
        const options = { continuation: ids };
        this.number = await app.source.capture(prompt, () => {}, this.running.signal, options);
      }
      this.said.textContent = "";
      openText(app, this.number, { view });
    } catch (error) {
      this.said.textContent = error.name === "AbortError" ? "" : error.message;
    } finally {
      this.running = null;
    }
  }

  stop() {
    this.running?.abort();
  }
}
