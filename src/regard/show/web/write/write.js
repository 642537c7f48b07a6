// @ts-check
// The Write view: the model continues a text, with its KV cache and without; what the cache saves.
// It knows the lines that a generation sends (`cli/parts/model.py`).

import { element, makeButton } from "../parts/dom.js";
import { some } from "../data/format.js";
import { exportMenu } from "../picture/menu.js";
import { viewFigure } from "../picture/figure.js";
import { textWords } from "../picture/words.js";
import { PageView } from "../view.js";
import { GenerationFigures } from "./figures.js";
import { GeneratedText } from "./generated_text.js";
import { savings, stepRows } from "./measurements.js";
import { openingSentence } from "./prompt.js";

const TOKENS = 24;
const BOTH_WAYS =
  "Let the model continue a text. Every token is computed twice, with the KV cache and without it, " +
  "and both are measured.";
const RECORDED =
  "This generation was recorded when the page was saved. Every token was computed twice, with the KV cache and " +
  "without it, and both were measured.";
/** @type {Record<string, string>} */
const ENDS = { end: "The model ended the text.", context: "The model’s context is full.", tokens: "" };

export class WriteView extends PageView {
  /** @param {ViewPlace} place */
  constructor(...place) {
    super(...place);
    const { root, app } = this;
    this.isNew = true; // until it is shown
    /** @type {GenerationStart | null} */
    this.start = null;
    /** @type {GenerationStep[]} */
    this.steps = [];
    /** @type {AbortController | null} */
    this.running = null; // what stops it
    this.form = makeForm(() => this.generate());
    this.lead = element("p.lead");
    this.said = element("p.note", { role: "status" });
    this.figures = new GenerationFigures();
    this.opening = new GeneratedText(app);
    const save = exportMenu(app, {
      name: () => "generation",
      picture: async () => viewFigure([this.figures.box], textWords(app, "the KV cache", app.state.text)),
      table: () => stepRows(this.steps),
    });
    const top = element("div.write-top", this.lead, save);
    this.figures.written.after(this.opening.box);
    const parts = [top, this.form.box, this.said, this.figures.box];
    const column = element("div.column", ...parts);
    root.append(element("div.scroll", { tabindex: "-1" }, column));
  }

  async generate() {
    if (this.running) {
      this.running.abort();
      return;
    }
    this.running = new AbortController();
    const { said, form } = this;
    form.button.textContent = "Stop";
    this.steps = [];
    this.start = null;
    said.textContent = "Running the prompt, with the cache and without it…";
    this.figures.begin([]);
    const options = form.values();
    this.opening.begin(options.text);
    try {
      await this.app.source.generate(options, (line) => this.take(line), this.running.signal);
    } catch (error) {
      said.textContent =
        error.name === "AbortError" ? `Stopped after ${some(this.steps.length, "token")}.` : error.message;
    } finally {
      this.running = null;
      this.opening.offer(this.steps);
      form.button.textContent = "Generate";
    }
  }

  /**
   * Takes one line of a generation.
   * @param {GenerationLine} line
   */
  take({ start, step, again, end, captured }) {
    if (start) {
      this.start = start;
      this.figures.begin(start.tokens);
    } else if (step) {
      this.steps.push(step);
      this.figures.write(step);
      const without = step.difference === null ? "" : " and without it";
      this.said.textContent = `Token ${this.steps.length}, with the cache${without}.`;
      this.draw();
    } else if (again) {
      const { step: number, seconds, ...compared } = again;
      const one = this.steps[number];
      this.steps[number] = { ...one, ...compared, seconds: { ...one.seconds, recomputed: seconds } };
      const written = some(this.steps.length, "token");
      this.said.textContent = `${written} generated with the cache. Now without it: token ${number + 1}.`;
      this.draw();
    } else if (captured !== undefined) this.opening.number = captured;
    else if (end) {
      const written = some(this.steps.length, "token");
      const finding = savings(this.steps, this.start?.layers ?? 0);
      this.said.textContent = `${written} generated, each with the cache and without it. ${ENDS[end.why] ?? ""} ${finding}`;
    }
  }

  draw() {
    this.figures.show(this.steps, this.start?.layers ?? 0);
  }

  /** @param {State} state */
  show(state) {
    const { meta } = this.app;
    const recorded = meta.generation;
    const can = meta.can.generate;
    this.form.box.hidden = !can;
    if (this.isNew) this.form.prompt.value = openingSentence(meta.texts[state.text]);
    if (this.isNew && recorded) {
      recorded.forEach((line) => this.take(line));
      this.said.textContent = RECORDED;
    }
    this.isNew = false;
    if (!can) this.opening.offer(this.steps);
    const uncut = can && this.app.runs.edited ? " It continues without the cuts of the edited run." : "";
    const finding = !can && recorded ? savings(this.steps, this.start?.layers ?? 0) : "";
    this.lead.textContent = finding || (can ? BOTH_WAYS : RECORDED) + uncut;
    this.draw();
  }

  hide() {
    this.running?.abort();
    this.opening.stop();
  }
}

/**
 * The prompt, the number of tokens and the button.
 * @param {() => void} submit
 */
function makeForm(submit) {
  const prompt = element("textarea.prompt", {
    rows: 3,
    maxlength: 20000,
    "aria-label": "Prompt",
    spellcheck: "false",
  });
  const tokens = element("input.place-input", {
    type: "number",
    min: 1,
    max: 256,
    value: TOKENS,
    "aria-label": "Number of tokens to generate",
  });
  const temperature = element("input.place-input", {
    type: "number",
    min: 0,
    max: 5,
    step: 0.1,
    value: 0.8,
    "aria-describedby": "sampling",
  });
  const sampling = element(
    "span.quiet.small",
    { id: "sampling" },
    "0: always the likeliest token. 1: drawn with the model’s own probabilities.",
  );
  const button = makeButton("Generate", submit, { class: "button strong" });
  /** @param {string} text @param {HTMLElement} input */
  const field = (text, input) => element("label.field", element("span.quiet.small", text), input);
  const fields = element(
    "div.fields",
    field("Tokens", tokens),
    field("Temperature", temperature),
    sampling,
    button,
  );
  prompt.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) submit();
  });
  return {
    box: element("div.write-form", { "data-off-paper": "" }, prompt, fields),
    prompt,
    button,
    values: () => ({
      text: prompt.value,
      tokens: Number(tokens.value),
      temperature: Number(temperature.value),
    }),
  };
}
