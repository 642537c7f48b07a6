// @ts-check
// “Read another text”, in the header of every view: hands the model a text, and removes texts from the page.
// Where there is no model it is hidden.

import { element, foldAway, makeButton } from "../parts/dom.js";
import { count, howFar } from "../data/format.js";
import { TooLongError } from "../source/too_long.js";
import { openText, textsChanged } from "./text_choice.js";

const LINKED = 1000; // characters of a text that an address spells out

/** The box with its button; `fill()` is called when the page's texts have changed. */
export class ReadingBox {
  /**
   * @param {App} app
   * @param {Map<number, string>} typed gets the texts that are short enough for a link, by their numbers
   */
  constructor(app, typed) {
    this.app = app;
    this.typed = typed;
    /** @type {AbortController | null} */
    this.running = null; // what stops it
    this.area = element("textarea.prompt", {
      rows: 6,
      "aria-label": "A text to read",
      placeholder: "Write or paste a text",
      spellcheck: "false",
      dir: "auto",
    });
    this.go = makeButton("Read it", () => this.read(), { class: "button strong" });
    this.shorten = makeButton("", () => this.read(this.most), { hidden: true });
    this.most = 0; // tokens that the model can read
    this.said = element("p.note", { role: "status" });
    this.list = element("ul.held-texts", { "aria-label": "Texts on this page" });
    const summary = element(
      "summary.button",
      { "aria-label": "Read another text" },
      element("span.in-large", "Read another text"),
      element("span.in-small", "New text"),
    );
    const buttons = element("div.fields", this.go, this.shorten);
    const panel = element("div.menu-list.reading-panel", this.area, buttons, this.said, this.list);
    this.box = element("details.menu.reading", { hidden: !app.meta.can.capture }, summary, panel);
    this.listen();
    this.fill();
  }

  /** Asks for a text. */
  open() {
    this.box.open = true;
  }

  /**
   * Has the model read a text that is given.
   * @param {string} text
   */
  readThis(text) {
    if (this.running) return;
    this.open();
    this.area.value = text;
    this.read();
  }

  listen() {
    const { box, area } = this;
    box.addEventListener("toggle", () => box.open && area.focus());
    box.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) this.read();
    });
    foldAway(box, () => !this.running);
    area.addEventListener("input", () => (this.shorten.hidden = true));
  }

  /**
   * Has the model read the text, or its first tokens; a second call stops it.
   * @param {number} [first]
   */
  async read(first) {
    if (this.running) return this.running.abort();
    if (!this.area.value.trim()) {
      this.said.textContent = "There is no text to read yet: write or paste one.";
      this.area.focus();
      return;
    }
    this.running = new AbortController();
    this.go.textContent = "Stop";
    this.shorten.hidden = true;
    this.said.textContent = "Starting the model…";
    try {
      const options = first ? { first } : {};
      const text = await this.app.source.capture(
        this.area.value,
        (line) => this.tell(line),
        this.running.signal,
        options,
      );
      const { value } = this.area;
      if (!first && value.length <= LINKED && !Number.isFinite(Number(value))) this.typed.set(text, value);
      this.said.textContent = "";
      this.area.value = "";
      this.box.open = false;
      this.box.querySelector("summary")?.focus();
      openText(this.app, text);
    } catch (error) {
      this.explain(error);
    } finally {
      this.running = null;
      this.go.textContent = "Read it";
    }
  }

  /** @param {Error} error */
  explain(error) {
    this.said.textContent = error.name === "AbortError" ? "Stopped." : error.message;
    if (!(error instanceof TooLongError)) return;
    this.most = error.most;
    this.shorten.textContent = `Read the first ${count(error.most)} tokens`;
    this.shorten.hidden = false;
  }

  /** @param {CaptureLine} line */
  tell({ progress }) {
    if (progress)
      this.said.textContent = `${progress.of > 1 ? `${progress.doing}: ` : ""}${howFar(progress)}`;
  }

  /** The texts that are held, each with a button that removes it; the last one stays. */
  fill() {
    const { app } = this;
    const held = app.runs.titles().filter(({ number }) => !app.meta.texts[number].edited);
    this.list.hidden = held.length < 2;
    this.list.replaceChildren(
      ...held.map(({ number, title }) => {
        const named = { class: "plain", "aria-label": `Remove “${title}”` };
        const remove = makeButton("Remove", () => this.remove(number), named);
        return element("li", element("bdi.held-title", { title }, title), remove);
      }),
    );
  }

  /** @param {number} number */
  async remove(number) {
    const { app } = this;
    const isShown = app.runs.original === number;
    try {
      const next = await app.source.remove(number);
      if (isShown) openText(app, next);
      else textsChanged();
      this.said.textContent = "";
    } catch (error) {
      this.said.textContent = error.message;
    }
    this.area.focus(); // the button that had it is gone
  }
}
