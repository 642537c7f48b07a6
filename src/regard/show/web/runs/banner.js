// @ts-check
// The banner above every view that says that a run is edited, what was cut and what changed, and undoes it.

import { latest } from "../parts/controls.js";
import { element, makeButton } from "../parts/dom.js";
import { number, percent } from "../data/format.js";
import { short } from "../data/tokens.js";
import { likelyTokens } from "../parts/prediction_list.js";

/** The banner; it is hidden where there is nothing to say. */
export class RunBanner {
  /** @param {App} app */
  constructor(app) {
    this.app = app;
    this.name = element("strong.run-name");
    this.chips = element("ul.cut-list", { "aria-label": "What is cut" });
    this.loss = element("span.run-loss");
    this.random = element("span.run-random.quiet");
    this.said = element("span.run-said", { role: "status" });
    this.other = makeButton("", () => app.set({ text: this.otherText }));
    this.undo = makeButton("Undo", () => this.undoAll());
    this.cancel = makeButton("Cancel", () => app.runs.cancel());
    const folded = { class: "button run-unfold", "aria-expanded": "false", "aria-controls": "run-changes" };
    this.unfold = makeButton("What changed", () => this.toggle(), folded);
    this.changes = element("div.run-changes", { id: "run-changes", hidden: true });
    const buttons = element("span.push", this.unfold, this.other, this.undo, this.cancel);
    const said = [this.loss, this.random, this.said];
    this.line = element("div.run-line", this.name, this.chips, ...said, buttons);
    const hidden = { "aria-label": "Edited run", hidden: true };
    this.box = element("section.run-banner", hidden, this.line, this.changes);
    this.shown = "";
    this.compare = latest(this.fillLikely.bind(this));
    app.runs.on(() => this.draw());
    addEventListener("regard-compared", () => this.draw());
  }

  /** Goes back to the model's own run. The banner goes with its button, so the view takes the focus. */
  async undoAll() {
    await this.app.runs.undo();
    if (this.box.hidden) document.getElementById("main")?.focus();
  }

  /**
   * Undoes one of several cuts. Its button goes, so that another one takes the focus.
   * @param {Cut} cut
   */
  async undoOne(cut) {
    const run = this.app.runs.toggle(cut);
    this.cancel.focus();
    await run;
    /** @type {HTMLElement} */ (this.chips.querySelector(".chip-undo") ?? this.undo).focus();
  }

  toggle() {
    this.unfold.setAttribute("aria-expanded", String(!this.isOpen));
    this.draw();
  }

  /** Whether the reader wants to see what changed. */
  get isOpen() {
    return this.unfold.getAttribute("aria-expanded") === "true";
  }

  /** The run to switch to: the edited one from the model's own, and the other way round. */
  get otherText() {
    const { runs } = this.app;
    return runs.edited ? runs.original : runs.number;
  }

  draw() {
    const { app, box } = this;
    const { runs } = app;
    const { running, problem, number: run } = runs;
    const aboutText = app.state.view !== "time" || !app.meta.time; // a training run has no text
    const edited = aboutText ? runs.edited : null;
    box.hidden = !aboutText || (!edited && !running && !problem && run < 0);
    document.body.classList.toggle("edited-run", edited !== null);
    document.title = `${edited ? "Edited run · " : ""}${app.meta.model} · Regard`;
    if (box.hidden) return;
    box.classList.toggle("edited", edited !== null);
    this.name.textContent = edited ? "Edited run" : run >= 0 ? "The model’s own run" : "";
    this.said.textContent = running ? `Running the model with the cut: ${runs.doing}` : problem;
    this.said.classList.toggle("bad", !running && problem !== "");
    this.cancel.hidden = !running;
    this.other.hidden = this.undo.hidden = run < 0 || running !== null;
    this.undo.hidden ||= !edited;
    this.other.textContent = edited ? "Show own run" : "Show edited run";
    this.drawCuts();
    this.drawChanges();
  }

  /** One chip for each cut, with a button that undoes it. */
  drawCuts() {
    const { runs, state } = this.app;
    this.chips.hidden = !runs.edited;
    const words = runs.words(state.text);
    const name = JSON.stringify([state.text, words, runs.running !== null]);
    if (name === this.shown) return;
    this.shown = name;
    const single = runs.cuts.length < 2 || runs.running !== null; // one is undone by Undo
    const chips = words.map((text, n) => {
      const named = { class: "chip-undo", "aria-label": `Undo: ${text}` };
      const undo = () => this.undoOne(runs.cuts[n]);
      return element("li.cut-chip", text, single ? null : makeButton("×", undo, named));
    });
    this.chips.replaceChildren(...chips);
  }

  drawChanges() {
    const { app } = this;
    const changes = app.runs.edited?.changes ?? null;
    this.unfold.hidden = changes === null || app.runs.running !== null;
    this.changes.hidden = !changes || !this.isOpen;
    this.loss.textContent = changes ? lossWords(changes) : "";
    this.random.textContent = randomWords(app.runs.edited);
    if (this.changes.hidden) return;
    const { text, row } = app.state;
    const telling = (changes?.most[0]?.position ?? 1) - 1; // what was expected there changed most
    this.compare(text, row >= 0 ? row : telling);
  }

  /**
   * The lists below the banner, with what is expected after a token.
   * @param {() => boolean} fresh
   * @param {number} text
   * @param {number} position
   */
  async fillLikely(fresh, text, position) {
    const { app } = this;
    const { tokens, edited } = app.meta.texts[text];
    if (!edited?.changes) return;
    const most = this.changedTokens(edited.changes, tokens ?? []);
    if (app.state.view === "text") return this.changes.replaceChildren(most); // they stand under the text
    const { lists, sentence } = await likelyTokens(app, text, position);
    if (!fresh()) return;
    const likely = element(
      "div.run-likely",
      element("h3", `Likeliest tokens after “${short(tokens?.[position] ?? "", 24)}” (${position})`),
      lists,
      element("p.small.quiet", sentence),
    );
    this.changes.replaceChildren(most, likely);
  }

  /**
   * The tokens whose probability changed the most; each leads to its place in the text.
   * @param {Changes} changes
   * @param {string[]} tokens
   */
  changedTokens({ most }, tokens) {
    const lines = most.map(({ position, before, after }) => {
      const around = element("span", short(tokens[position - 1] ?? "", 8));
      const button = makeButton(
        "",
        () => this.app.set({ view: "text", direction: "at", row: position - 1, col: -1 }),
        { class: null, title: "Show what the model expects here" },
        element("span.place", position),
        element("span.token", around, short(tokens[position] ?? "", 12)),
        element("span.weight", percent(before)),
        element("span.arrow", "→"),
        element("span", { class: `weight ${after < before ? "less" : "more"}` }, percent(after)),
        changeBar(before, after),
      );
      return element("li", button);
    });
    const title = element("h3", "Tokens whose probability changed most");
    const none = element("p.small.quiet", "No probability changed.");
    return element("div.run-most", title, lines.length ? element("ol.changed", ...lines) : none);
  }
}

/**
 * The mean loss before and after: "loss 2.59 → 3.10 (+0.51)".
 * @param {Changes} changes
 */
export function lossWords({ before, after }) {
  if (before === null || after === null) return "";
  return `loss ${number(before, 3)} → ${number(after, 3)} (${signed(after - before)})`;
}

/**
 * What cutting random heads instead changes: "one random head: +0.012".
 * @param {EditedRun | null} edited
 */
export function randomWords(edited) {
  const before = edited?.changes?.before ?? null;
  const after = edited?.random ?? null;
  if (!edited || before === null || after === null) return "";
  const heads = new Set(edited.cuts.map(({ layer, head }) => `${layer}.${head}`)).size;
  return `${heads > 1 ? `${heads} random heads` : "a random head"}: ${signed(after - before)}`;
}

/** @param {number} change */
function signed(change) {
  return `${change >= 0 ? "+" : ""}${number(change, Math.abs(change) < 0.01 ? 4 : 3)}`;
}

/**
 * A bar from the probability before to that after.
 * @param {number} before
 * @param {number} after
 */
function changeBar(before, after) {
  const [low, high] = [Math.min(before, after), Math.max(before, after)];
  const places = { "--before": before, "--low": low, "--high": high, "aria-hidden": "true" };
  const kind = after < before ? "less" : "more";
  return element("span", { class: `change-bar ${kind}`, ...places }, element("i"), element("b"));
}
