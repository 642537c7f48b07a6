// @ts-check
// The tokens as spans of running text, shaded by level. It knows spans; what is chosen is the view's business.

import { css, inkOn } from "../common/colours.js";
import { element } from "../common/dom.js";
import { theme } from "../common/theme.js";
import { inRunningText } from "./layout.js";
import { levels, shadeOf } from "./shading.js";

/** @typedef {HTMLSpanElement & { token: number }} TokenSpan */

const BEFORE = /^\s+(?=\S)/; // the space before a word
const STALE = 255; // a level that no token has, so that it is painted again

/** A list of tokens, one span for each. */
export class TokenText {
  constructor() {
    this.body = element("div", {
      class: "text-body",
      role: "listbox",
      tabindex: "0",
      "aria-label": "Tokens of the text",
    });
    /** @type {TokenSpan[]} */
    this.spans = [];
    this.levels = new Uint8Array(0); // of each span, as it is painted
    this.signed = false; // and on which ramp
    /** @type {HTMLElement[]} */
    this.marked = []; // the spans that are outlined or struck out
  }

  /**
   * Writes another text; if it is not `spaced`, the spaces before words stand between them. `boundary` is the first
   * generated token, or null.
   * @param {WrittenText & { spaced: boolean }} written
   * @param {number | null} boundary
   */
  write({ tokens, second, spaced }, boundary) {
    const blank = element("span", { class: "tok", role: "option" }); // copies are quicker, and there are many
    this.spans = tokens.map((token, i) => {
      const span = Object.assign(/** @type {HTMLSpanElement} */ (blank.cloneNode()), { token: i });
      span.id = `tok-${i}`;
      span.textContent = inRunningText(spaced ? token : token.replace(BEFORE, ""));
      if (i > 0 && i === boundary) span.classList.add("first-written");
      return span;
    });
    this.levels = new Uint8Array(this.spans.length);
    // The last line end stands outside of its token, which would otherwise begin the next line.
    this.body.replaceChildren(
      ...this.spans.flatMap((span, i) => [
        spaced ? "" : (BEFORE.exec(tokens[i])?.[0] ?? ""),
        span,
        tokens[i].endsWith("\n") ? "\n" : "",
      ]),
    );
    if (second)
      this.spans[second]?.before(
        element("span", { class: "second-text", text: "attends to the text above:", role: "presentation" }),
      );
  }

  /** Has every token painted again, because the theme or the ramp changed. */
  forgetColours() {
    this.levels.fill(STALE);
  }

  /**
   * Shades the tokens; only those whose level changes are touched.
   * @param {Shaded | null} shaded
   * @param {string} scale
   */
  paint(shaded, scale) {
    const name = theme();
    const signed = shaded?.signed ?? false;
    if (signed !== this.signed) this.forgetColours();
    this.signed = signed;
    levels(shaded, this.spans.length, scale).forEach((level, i) => {
      if (level === this.levels[i]) return;
      this.levels[i] = level;
      const { t, unseen } = shadeOf(level, signed);
      const { style, classList } = this.spans[i];
      classList.toggle("unseen", unseen);
      style.backgroundColor = t === null ? "" : css(t, name, signed);
      style.color = t === null ? "" : inkOn(t, name, signed);
    });
    for (const span of this.marked.splice(0)) span.classList.remove("at", "left-out");
    if (!shaded) return;
    this.mark(shaded.token, "at");
    this.mark(shaded.without, "left-out");
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
   * The token that an event is about, or -1.
   * @param {Event} event
   */
  tokenOf(event) {
    const span = event.target instanceof Element ? event.target.closest(".tok") : null;
    return span ? /** @type {TokenSpan} */ (span).token : -1;
  }
}
