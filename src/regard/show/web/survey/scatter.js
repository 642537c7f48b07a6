// @ts-check
// Points over two axes, as SVG: they can be pointed at, walked with the arrow keys, and chosen. It knows points; it does
// not know what they measure.

import { chartFrame, chartAxes } from "../parts/chart.js";
import { element, svgElement } from "../parts/dom.js";

const RADIUS = 5;
const NAMED = 4; // points whose names stand beside them, at most
const BESIDE = 9; // pixels from the middle of a point to its name

/** @typedef {{ points: ScatterPoint[], x: ChartAxis, y: ChartAxis, chosen: string, label: string }} ScatterData */

/**
 * The points whose names stand beside them: those with a label that are furthest out.
 * @param {ScatterData} data
 * @returns {string[]} their ids
 */
export function outliers({ points, x, y }) {
  const far = (/** @type {ScatterPoint} */ point) => point.x / (x.high || 1) + point.y / (y.high || 1);
  const labelled = points.filter((point) => point.labelled).sort((a, b) => far(b) - far(a));
  return labelled.slice(0, NAMED).map(({ id }) => id);
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
    const { points, chosen, label, ...axes } = this.data;
    const focused = this.box.contains(document.activeElement);
    const picture = svgElement("svg", {
      width,
      height: this.height,
      viewBox: `0 0 ${width} ${this.height}`,
      role: "group",
      "aria-label": label,
    });
    const frame = chartFrame({ series: [], ...axes }, width, this.height);
    const { across, up } = frame;
    const titles = {
      x: { ...axes.x, title: `${axes.x.title} →` },
      y: { ...axes.y, title: `↑ ${axes.y.title}` },
    };
    picture.append(chartAxes(frame, titles));
    const named = outliers(this.data);
    const last = points.toSorted((a, b) => Number(a.id === chosen) - Number(b.id === chosen)); // over the others
    for (const { id, x, y, labelled, name } of last) {
      const kind = `scatter-point${labelled ? " labelled" : ""}${id === chosen ? " chosen" : ""}`;
      const at = { cx: across(x).toFixed(1), cy: up(y).toFixed(1), r: id === chosen ? RADIUS + 2 : RADIUS };
      const role = { role: "button", "aria-label": name, "aria-pressed": String(id === chosen) };
      const tabindex = id === chosen ? 0 : -1;
      const dot = svgElement("circle", { class: kind, ...at, "data-head": id, tabindex, ...role });
      dot.append(svgElement("title", {}, name));
      picture.append(dot);
      if (!named.includes(id)) continue;
      const isLeft = across(x) > width / 2;
      const place = { x: across(x) + (isLeft ? -BESIDE : BESIDE), y: up(y) + 4 };
      const anchor = { class: "chart-name", "text-anchor": isLeft ? "end" : "start" };
      picture.append(
        svgElement("text", { ...place, ...anchor, "aria-hidden": "true" }, id.replace("/", ".")),
      );
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
