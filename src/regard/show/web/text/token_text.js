// @ts-check
// The tokens as spans of running text, shaded by level. It knows spans; what is chosen is the view's business.

import { colourCell } from "../parts/colours.js";
import { element, reveal } from "../parts/dom.js";
import { count } from "../data/format.js";
import { splitTokens } from "../data/split_characters.js";
import { directionOf, isStart, START_MARK, visible } from "../data/tokens.js";
import { heatColour } from "./heat.js";
import { inRunningText, LONGEST } from "./layout.js";
import { arrangePatches } from "./patch_fields.js";
import { levels, shadeOf } from "./shading.js";

/** @typedef {HTMLSpanElement & { token: number }} TokenSpan */

const BEFORE = /^\s+(?=\S)/; // the space before a word
const FAINTEST = 0.02; // of a second head's shades, below which a token is not underlined
const STALE = 255; // a level that no token has, so that it is painted again

/** A list of tokens, one span for each. */
export class TokenText {
  constructor() {
    this.body = element("div.text-body", {
      role: "listbox",
      tabindex: "0",
      "aria-label": "Tokens of the text",
    });
    /** @type {TokenSpan[]} */
    this.spans = [];
    /** @type {Set<number>} */
    this.patches = new Set(); // the tokens that are fields of a picture
    this.levels = new Uint8Array(0); // of each span, as it is painted
    this.signed = false; // and on which ramp
    /** @type {HTMLElement[]} */
    this.marked = []; // the spans that are outlined or struck out
    /** @type {HTMLElement[]} */
    this.underlined = []; // the spans that a second head attends to
  }

  /**
   * Writes another text; if it is not `spaced`, the spaces before words stand between them. `boundary` is the first
   * generated token, or null.
   * @param {WrittenText & { spaced: boolean }} written
   * @param {number | null} boundary
   */
  write({ tokens, second, spaced }, boundary) {
    const blank = element("span.tok", { role: "option" }); // copies are quicker, and there are many
    const split = splitTokens(tokens);
    this.spans = split.map(({ text, first }, i) => {
      const span = Object.assign(/** @type {HTMLSpanElement} */ (blank.cloneNode()), { token: i });
      span.id = `tok-${i}`;
      if (first === i) span.textContent = inRunningText(spaced ? text : text.replace(BEFORE, ""));
      if (isStart(text, i)) {
        Object.assign(span, { textContent: START_MARK, title: text, ariaLabel: text });
        span.classList.add("start");
      }
      if (text.length > LONGEST) span.title = `${count(text.length)} characters`;
      if (i > 0 && i === boundary) span.classList.add("first-written");
      return span;
    });
    this.levels = new Uint8Array(this.spans.length);
    // A line ends after a token that ends with a line end.
    const ends = split.flatMap(({ text }, i) =>
      text.endsWith("\n") || i === split.length - 1 ? [i + 1] : [],
    );
    this.body.replaceChildren(
      ...ends.map((end, n) => {
        const start = n ? ends[n - 1] : 0;
        const line = element("div.line", { dir: directionOf(tokens.slice(start, end)) });
        line.append(
          ...split.slice(start, end).flatMap((token, i) => this.written(token, start + i, split, spaced)),
        );
        return line;
      }),
    );
    if (second)
      this.spans[second]?.before(
        element("span.second-text", { role: "presentation" }, "attends to the text above:"),
      );
  }

  /**
   * Shows the tokens that stand for patches as fields of their pictures.
   * @param {string[]} names of the tokens
   * @param {PatchLayout} layout of the written tokens
   * @param {PicturesMeta | null} pictures
   */
  showPictures(names, layout, pictures) {
    this.patches = arrangePatches(this.spans, names, layout, pictures?.images ?? []);
  }

  /**
   * What a token adds to its line: nothing if it goes on with a character, which it then stands with.
   * @param {SplitToken} token
   * @param {number} i its number
   * @param {SplitToken[]} split all of them
   * @param {boolean} spaced
   * @returns {(Node | string)[]}
   */
  written({ text, first, pieces }, i, split, spaced) {
    if (first !== i) return [];
    return [spaced ? "" : (BEFORE.exec(text)?.[0] ?? ""), pieces ? this.together(split, i) : this.spans[i]];
  }

  /**
   * The pieces of a character: it is written once, and each further piece is a small field below it.
   * @param {SplitToken[]} split
   * @param {number} first
   */
  together(split, first) {
    const { text, pieces } = split[first];
    const character = [...text].at(-1) ?? "";
    const whole = element("span.split", { role: "presentation", "--pieces": pieces });
    const others = this.spans.slice(first, first + pieces).filter((_, n) => split[first + n].first === first);
    others.forEach((span, n) => {
      const words = `${visible(character)}, piece ${n + 1} of ${pieces}`;
      span.title = words;
      span.setAttribute("aria-label", words);
      if (n > 0) span.classList.add("piece");
      span.style.setProperty("--piece", String(n));
      whole.append(span);
    });
    return whole;
  }

  /**
   * Shades the tokens; only those whose level changes are touched.
   * @param {Shaded | null} shaded
   * @param {string} scale
   * @param {Shaded | null} [second] of a second head
   */
  paint(shaded, scale, second = null) {
    const signed = shaded?.signed ?? false;
    if (signed !== this.signed) this.levels.fill(STALE);
    this.signed = signed;
    levels(shaded, this.spans.length, scale).forEach((level, i) => {
      if (level === this.levels[i]) return;
      this.levels[i] = level;
      const { t, unseen } = shadeOf(level, signed);
      const { style, classList } = this.spans[i];
      classList.toggle("unseen", unseen);
      colourCell(style, t, signed);
      if (this.patches.has(i) && !signed && t !== null) style.backgroundColor = heatColour(t);
    });
    for (const span of this.marked.splice(0)) span.classList.remove("at", "left-out", "outlier");
    this.paintSecond(second, scale);
    if (!shaded) return;
    this.mark(shaded.token, "at");
    for (const token of shaded.without) this.mark(token, "left-out");
  }

  /**
   * Underlines the tokens that a second head attends to, in its own colour.
   * @param {Shaded | null} second
   * @param {string} scale
   */
  paintSecond(second, scale) {
    for (const span of this.underlined.splice(0)) span.style.removeProperty("--second-share");
    if (!second) return;
    levels(second, this.spans.length, scale).forEach((level, i) => {
      const { t } = shadeOf(level, false);
      if (t === null || t < FAINTEST) return;
      this.spans[i].style.setProperty("--second-share", `${Math.round(100 * t)}%`);
      this.underlined.push(this.spans[i]);
    });
  }

  /**
   * @param {number} token
   * @param {string} kind
   */
  mark(token, kind) {
    const span = this.spans[token];
    if (!span) return;
    span.classList.add(kind);
    this.marked.push(span);
  }

  /**
   * Says to screen readers which token is pinned, -1 for none.
   * @param {number} token
   */
  select(token) {
    this.body.querySelector("[aria-selected]")?.removeAttribute("aria-selected");
    this.spans[token]?.setAttribute("aria-selected", "true");
  }

  /**
   * Says to screen readers which token is pointed at, -1 for none.
   * @param {number} token
   */
  pointAt(token) {
    this.body.setAttribute("aria-activedescendant", token >= 0 ? `tok-${token}` : "");
  }

  /** @param {number} token */
  reveal(token) {
    this.spans[token].scrollIntoView({ block: "nearest" });
  }

  /**
   * The same, within the box that the text scrolls in: the page stays where it is.
   * @param {number} token
   */
  revealWithin(token) {
    const box = this.body.closest(".text-scroll");
    if (this.spans[token] && box instanceof HTMLElement) reveal(this.spans[token], box);
  }

  /**
   * The token that an event is about, or -1.
   * @param {Event} event
   */
  tokenOf(event) {
    const span = event.target instanceof Element ? event.target.closest(".tok") : null;
    return span ? /** @type {TokenSpan} */ (span).token : -1;
  }
}
