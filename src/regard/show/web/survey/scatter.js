// @ts-check
// Points over two axes, as SVG: they can be pointed at, walked with the arrow keys, and chosen. It knows points; it does
// not know what they measure.

import { ticks } from "../parts/chart.js";
import { element, svgElement } from "../parts/dom.js";

const MARGIN = { top: 22, right: 14, bottom: 38, left: 50 };
const RADIUS = 5;

/** @typedef {{ points: ScatterPoint[], x: ChartAxis, y: ChartAxis, chosen: string, label: string }} ScatterData */

/**
 * @param {ScatterData} data
 * @param {number} width
 * @param {number} height
 */
function drawAxes({ x, y }, width, height) {
  const [right, bottom] = [width - MARGIN.right, height - MARGIN.bottom];
  /** @param {number} value */
  const across = (value) => MARGIN.left + ((value - x.low) / (x.high - x.low || 1)) * (right - MARGIN.left);
  /** @param {number} value */
  const up = (value) => bottom - ((value - y.low) / (y.high - y.low || 1)) * (bottom - MARGIN.top);
  const group = svgElement("g", { class: "chart-axes" });
  for (const tick of ticks(y.low, y.high)) {
    const place = up(tick);
    group.append(
      svgElement("line", { x1: MARGIN.left, x2: right, y1: place, y2: place }),
      svgElement("text", { x: MARGIN.left - 8, y: place + 4, "text-anchor": "end" }, y.say(tick)),
    );
  }
  for (const tick of ticks(x.low, x.high, Math.max(2, Math.floor((right - MARGIN.left) / 90)))) {
    const place = across(tick);
    group.append(
      svgElement("line", { x1: place, x2: place, y1: MARGIN.top, y2: bottom }),
      svgElement("text", { x: place, y: bottom + 16, "text-anchor": "middle" }, x.say(tick)),
    );
  }
  group.append(
    svgElement(
      "text",
      { class: "chart-title", x: right, y: height - 5, "text-anchor": "end" },
      `${x.title} →`,
    ),
    svgElement("text", { class: "chart-title", x: 2, y: 11 }, `↑ ${y.title}`),
  );
  return { group, across, up };
}

/** The scatter in its box; `draw(data)` shows other data, and `choose` and `point` are told of heads by their ids. */
export class Scatter {
  /**
   * @param {number} height
   * @param {{ choose: (id: string) => void, point: (id: string) => void }} listeners
   */
  constructor(height, { choose, point }) {
    this.height = height;
    this.choose = choose;
    this.box = element("div", { class: "chart scatter" });
    this.box.style.height = `${height}px`;
    /** @type {ScatterData | null} */
    this.data = null;
    new ResizeObserver(() => this.paint()).observe(this.box);
    /** @param {Event} event */
    const idOf = ({ target }) => (target instanceof SVGElement && target.dataset.head) || "";
    this.box.addEventListener("click", (event) => idOf(event) && choose(idOf(event)));
    for (const kind of ["pointerover", "focusin"])
      this.box.addEventListener(kind, (event) => point(idOf(event)));
    for (const kind of ["pointerleave", "focusout"]) this.box.addEventListener(kind, () => point(""));
    this.box.addEventListener("keydown", (event) => this.walk(event, idOf(event)));
  }

  /** @param {ScatterData} data */
  draw(data) {
    this.data = data;
    this.paint();
  }

  paint() {
    const width = this.box.clientWidth;
    if (!this.data || width < 60) return;
    const { points, chosen, label } = this.data;
    const focused = this.box.contains(document.activeElement);
    const picture = svgElement("svg", {
      width,
      height: this.height,
      viewBox: `0 0 ${width} ${this.height}`,
      role: "group",
      "aria-label": label,
    });
    const { group, across, up } = drawAxes(this.data, width, this.height);
    picture.append(group);
    const last = points.toSorted((a, b) => Number(a.id === chosen) - Number(b.id === chosen)); // over the others
    for (const { id, x, y, labelled, name } of last) {
      const kind = `scatter-point${labelled ? " labelled" : ""}${id === chosen ? " chosen" : ""}`;
      const at = { cx: across(x).toFixed(1), cy: up(y).toFixed(1), r: id === chosen ? RADIUS + 2 : RADIUS };
      const role = { role: "button", "aria-label": name, "aria-pressed": String(id === chosen) };
      const tabindex = id === chosen ? 0 : -1;
      const dot = svgElement("circle", { class: kind, ...at, "data-head": id, tabindex, ...role });
      dot.append(svgElement("title", {}, name));
      picture.append(dot);
    }
    this.box.replaceChildren(picture);
    if (focused) this.focus(chosen);
  }

  /** @param {string} id */
  focus(id) {
    const dots = [...this.box.querySelectorAll("circle")];
    dots.find((dot) => dot.dataset.head === id)?.focus();
  }

  /**
   * Left and right go to the next point by the score from left to right, up and down by the other; Enter chooses.
   * @param {KeyboardEvent} event
   * @param {string} id
   */
  walk(event, id) {
    if (!this.data || !id) return;
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      this.choose(id);
      return;
    }
    /** @type {Record<string, ["x" | "y", number]>} */
    const steps = { ArrowRight: ["x", 1], ArrowLeft: ["x", -1], ArrowUp: ["y", 1], ArrowDown: ["y", -1] };
    if (!Object.hasOwn(steps, event.key)) return;
    event.preventDefault();
    const [axis, step] = steps[event.key];
    const order = this.data.points.toSorted((a, b) => a[axis] - b[axis]);
    const next = order[order.findIndex((point) => point.id === id) + step];
    if (next) this.focus(next.id);
  }
}
