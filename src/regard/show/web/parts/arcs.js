// @ts-check
// Arcs from a token to those that it attends to, drawn over running text or a line of tokens. They are a picture of
// numbers that stand elsewhere in words, so screen readers pass over them.

import { svgElement } from "./dom.js";

const HIGHEST = 30; // pixels that an arc within a line rises at most

/**
 * @typedef {object} Arc
 * @property {HTMLElement} from the query's element
 * @property {HTMLElement} to the key's
 * @property {number} strength from 0 to 1
 * @property {"first" | "second"} kind whose: it sets the colour, and the side within a line
 */

/** A layer of arcs over `box`, which must be positioned and hold the tokens. */
export class ArcLayer {
  /** @param {HTMLElement} box */
  constructor(box) {
    this.box = box;
    this.svg = svgElement("svg", { class: "arcs", "aria-hidden": "true" });
    /** @type {Arc[]} */
    this.arcs = [];
    box.append(this.svg);
    new ResizeObserver(() => this.paint()).observe(box);
    addEventListener("regard-paper", () => this.paint()); // other fonts put the tokens elsewhere
  }

  /** @param {Arc[]} arcs */
  draw(arcs) {
    this.arcs = arcs;
    this.paint();
  }

  paint() {
    const { left, top } = this.box.getBoundingClientRect();
    const shapes = this.arcs.flatMap(({ from, to, strength, kind }) => {
      const [a, b] = [from, to].map((one) => one.getClientRects()[0]);
      if (!a || !b) return [];
      const { path, end } = arcPath(a, b, kind === "second");
      const shift = `translate(${-left} ${-top})`;
      const width = 1 + 2.5 * strength;
      const opacity = 0.45 + 0.5 * strength;
      return [
        svgElement("path", {
          class: `arc ${kind}`,
          d: path,
          transform: shift,
          "stroke-width": width,
          opacity,
        }),
        svgElement("circle", {
          class: `arc-end ${kind}`,
          cx: end[0],
          cy: end[1],
          r: 1.5 + width / 2,
          transform: shift,
        }),
      ];
    });
    this.svg.replaceChildren(...shapes);
  }
}

/**
 * The path of an arc between two rectangles, and where it ends: over or under a line that both stand in, and from line
 * to line otherwise.
 * @param {Rectangle} from
 * @param {Rectangle} to
 * @param {boolean} below whether arcs within a line go under it
 * @returns {{ path: string, end: Point }}
 */
export function arcPath(from, to, below) {
  const [x, x2] = [from, to].map(({ left, right }) => (left + right) / 2);
  const sameLine = Math.abs(from.top - to.top) < (from.bottom - from.top) / 2;
  const down = sameLine ? below : to.top > from.top;
  const y = down ? from.bottom : from.top;
  const y2 = sameLine === down ? to.bottom : to.top;
  const rise = sameLine ? Math.min(HIGHEST, 8 + Math.abs(x2 - x) / 6) : Math.max(14, Math.abs(y2 - y) / 2);
  const sign = down ? 1 : -1;
  const bend = sameLine ? y2 + sign * rise : y2 - sign * rise;
  const points = [x, y + sign * rise, x2, bend, x2, y2].map((n) => n.toFixed(1));
  const path = `M${x.toFixed(1)} ${y.toFixed(1)}C${points.join(" ")}`;
  return { path, end: [x2, y2] };
}
