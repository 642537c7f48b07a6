// @ts-check
// What a generation wrote and what was measured of it: the text, a table, a chart and a picture.

import { chart } from "../parts/chart.js";
import { element } from "../parts/dom.js";
import { isStart, START_MARK } from "../data/tokens.js";
import { joinTokens, splitTokens, withToken } from "../data/split_characters.js";
import { drawComputed } from "./computed.js";
import { agreement, bothTimes, measurements, timeChart } from "./measurements.js";
import { plainToken } from "./prompt.js";

/** The figures of one generation. */
export class GenerationFigures {
  constructor() {
    this.written = element("p", { class: "written", dir: "auto", "aria-label": "Generated text" });
    this.table = element("table", { class: "measured" });
    this.agreement = element("p", { class: "note" });
    this.times = chart(240);
    this.picture = element("canvas", { class: "computed", role: "img" });
    this.run = element("i", { class: "run" });
    this.read = element("i", { class: "read" });
    /** @type {GenerationStep[]} */
    this.steps = [];
    /** @type {string[]} */
    this.tokens = []; // that were generated
    /** @type {HTMLElement[]} */
    this.spans = []; // as they are written
    this.box = element(
      "section",
      { class: "cache-measured" },
      this.written,
      element(
        "div",
        { class: "write-figures" },
        element("section", {}, element("h2", { text: "Measurements" }), this.table, this.agreement),
        element("section", {}, element("h2", { text: "Time per token" }), this.times),
        this.computed(),
      ),
    );
    new ResizeObserver(() => this.paint()).observe(this.picture);
  }

  /** The picture of what goes through the model, with its key. */
  computed() {
    return element(
      "section",
      { class: "whole" },
      element("h2", { text: "Tokens computed in each step" }),
      element(
        "p",
        { class: "small quiet" },
        "One row for each generated token, one column for each token of the text: ",
        element("span", { class: "computed-key" }, this.run, "computed"),
        element("span", { class: "computed-key" }, this.read, "read from the cache"),
      ),
      this.picture,
    );
  }

  /**
   * Begins another text, with these tokens as its prompt.
   * @param {string[]} tokens
   */
  begin(tokens) {
    const text = plainToken(joinTokens(tokens.map((token, i) => (isStart(token, i) ? START_MARK : token))));
    this.tokens = [];
    this.spans = [];
    this.written.replaceChildren(...(text ? [element("span", { class: "quiet", text })] : []));
  }

  /** @param {GenerationStep} step */
  write({ token, seconds }) {
    const span = element("span", { class: "tok new", title: bothTimes(seconds) });
    this.written.append(span);
    this.spans.push(span);
    this.tokens = withToken(this.tokens, token); // pieces of a character are known once it is whole
    splitTokens(this.tokens).forEach(({ text, first }, n) => {
      const shown = first === n ? plainToken(text) : "";
      if (this.spans[n].textContent !== shown) this.spans[n].textContent = shown;
    });
  }

  /**
   * @param {GenerationStep[]} steps
   * @param {number} layers
   */
  show(steps, layers) {
    this.steps = steps;
    this.box.hidden = !steps.length;
    if (!steps.length) return;
    const titles = ["", "with the cache", "without it", ""];
    const head = element("tr", {}, ...titles.map((text) => element("th", { text, scope: "col" })));
    const rows = measurements(steps, layers).map(({ title, cached, recomputed, gain }) =>
      element(
        "tr",
        {},
        element("th", { text: title, scope: "row" }),
        element("td", { text: cached }),
        element("td", { text: recomputed }),
        element("td", { class: "quiet", text: gain }),
      ),
    );
    this.table.replaceChildren(element("thead", {}, head), element("tbody", {}, ...rows));
    this.agreement.textContent = agreement(steps);
    this.times.draw(timeChart(steps));
    this.paint();
  }

  paint() {
    if (!this.steps.length) return;
    drawComputed(this.picture, this.steps, () => ({
      run: getComputedStyle(this.run).backgroundColor,
      read: getComputedStyle(this.read).backgroundColor,
    }));
  }
}
