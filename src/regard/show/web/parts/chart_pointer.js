// @ts-check
// Names the curve of a chart that is pointed at, by the pointer or from elsewhere on the page.

import { last } from "../data/arrays.js";
import { element } from "./dom.js";

const NEAR = 14; // pixels from the pointer within which a curve is pointed at

/**
 * The curve that is nearest to a point of a chart, and the place of its nearest value; null if none is near.
 * @param {ChartCurve[]} curves
 * @param {Point} point
 */
export function nearestCurve(curves, point) {
  let best = { curve: /** @type {ChartCurve | null} */ (null), distance: NEAR };
  for (const curve of curves) {
    const distance = Math.min(...curve.places.map((_, n) => distanceToPart(curve.places, n, point)));
    if (distance < best.distance) best = { curve, distance };
  }
  const { curve } = best;
  if (!curve) return null;
  const offsets = curve.places.map(([x]) => Math.abs(x - point[0]));
  return { curve, at: offsets.indexOf(Math.min(...offsets)) };
}

/**
 * How far a point is from the part of a line that ends at place `n`.
 * @param {Point[]} places
 * @param {number} n
 * @param {Point} point
 */
function distanceToPart(places, n, [x, y]) {
  const [[x0, y0], [x1, y1]] = [places[Math.max(0, n - 1)], places[n]];
  const length = (x1 - x0) ** 2 + (y1 - y0) ** 2;
  const along = length ? Math.min(1, Math.max(0, ((x - x0) * (x1 - x0) + (y - y0) * (y1 - y0)) / length)) : 0;
  return Math.hypot(x - x0 - along * (x1 - x0), y - y0 - along * (y1 - y0));
}

/** Brings out one curve of a chart and names it; the chart gives it the curves that can be pointed at. */
export class ChartPointer {
  /**
   * @param {HTMLElement} box of the chart
   * @param {(id: string) => void} choose is called when the reader clicks on a curve
   */
  constructor(box, choose) {
    this.box = box;
    this.tip = element("p.chart-tip", { hidden: true });
    /** @type {ChartCurve[]} */
    this.curves = [];
    this.id = ""; // of the curve that is brought out
    box.addEventListener("pointermove", (event) => this.follow(event));
    box.addEventListener("pointerleave", () => this.bringOut(null));
    box.addEventListener("click", () => this.id && choose(this.id));
  }

  /** @param {PointerEvent} event */
  follow({ clientX, clientY }) {
    const { left, top } = this.box.getBoundingClientRect();
    const found = nearestCurve(this.curves, [clientX - left, clientY - top]);
    this.bringOut(found?.curve ?? null, found?.at);
  }

  /**
   * Brings out a curve by its id, with its last value; an id that no curve has brings out none.
   * @param {string} id
   */
  point(id) {
    this.bringOut(this.curves.find((curve) => curve.id === id) ?? null);
  }

  /**
   * @param {ChartCurve | null} curve
   * @param {number} [at] the place of the value that is named
   */
  bringOut(curve, at = (curve?.places.length ?? 0) - 1) {
    for (const { line } of this.curves) line.classList.remove("pointed");
    this.id = curve?.id ?? "";
    this.tip.hidden = curve === null;
    this.box.classList.toggle("pointing", curve !== null);
    if (!curve) return;
    curve.line.classList.add("pointed");
    curve.line.parentNode?.append(curve.line); // in front of the others
    this.tip.textContent = `${curve.about}: ${curve.values[at] ?? last(curve.values)}`;
    const [x, y] = curve.places[at] ?? last(curve.places);
    const left = Math.max(
      0,
      Math.min(x - this.tip.offsetWidth / 2, this.box.clientWidth - this.tip.offsetWidth),
    );
    const above = y - this.tip.offsetHeight - 8;
    this.tip.style.transform = `translate(${Math.round(left)}px, ${Math.round(above >= 0 ? above : y + 10)}px)`;
  }
}
