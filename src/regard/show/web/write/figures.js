// @ts-check
// What a generation wrote and what was measured of it: the text, a table, a chart and a picture.

import { chart } from "../parts/chart.js";
import { element, tableRows } from "../parts/dom.js";
import { isStart, START_MARK } from "../data/tokens.js";
import { joinTokens, splitTokens, withToken } from "../data/split_characters.js";
import { computedPicture } from "./computed.js";
import { agreement, bothTimes, measurements, timeChart } from "./measurements.js";
import { plainToken } from "./prompt.js";

/** The figures of one generation. */
export class GenerationFigures {
  constructor() {
    this.written = element("p.written", { dir: "auto", "aria-label": "Generated text" });
    this.table = element("table.measured");
    this.agreement = element("p.note");
    this.times = chart(240);
    this.picture = element("div.computed-box");
    /** @type {GenerationStep[]} */
    this.steps = [];
    /** @type {string[]} */
    this.tokens = []; // that were generated
    /** @type {HTMLElement[]} */
    this.spans = []; // as they are written
    this.box = element(
      "section.cache-measured",
      this.written,
      element(
        "div.write-figures",
        element("section", element("h2", "Measurements"), this.table, this.agreement),
        element("section", element("h2", "Time per token"), this.times),
        this.computed(),
      ),
    );
    new ResizeObserver(() => this.paint()).observe(this.picture);
  }

  /** The picture of what goes through the model, with its key. */
  computed() {
    return element(
      "section.whole",
      element("h2", "Tokens computed in each step"),
      element(
        "p.small.quiet",
        "One row for each generated token, one column for each token of the text: ",
        element("span.computed-key", element("i.run"), "computed"),
        element("span.computed-key", element("i"), "read from the cache"),
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
    this.written.replaceChildren(...(text ? [element("span.quiet", text)] : []));
  }

  /** @param {GenerationStep} step */
  write({ token, seconds }) {
    const span = element("span.tok.new", { title: bothTimes(seconds) });
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
    const lines = measurements(steps, layers).map(({ title, cached, recomputed, gain }) => [
      title,
      cached,
      recomputed,
      gain,
    ]);
    this.table.replaceChildren(...tableRows(["", "with the cache", "without it", ""], lines));
    this.agreement.textContent = agreement(steps);
    this.times.draw(timeChart(steps));
    this.paint();
  }

  paint() {
    if (this.steps.length)
      this.picture.replaceChildren(computedPicture(this.steps, this.picture.clientWidth || 480));
  }
}
