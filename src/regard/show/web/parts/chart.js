// @ts-check
// Lines over a common axis, as SVG. It knows points; it does not know what they measure.

import { known, last } from "../data/arrays.js";
import { ChartPointer } from "./chart_pointer.js";
import { element, svgElement } from "./dom.js";

const MARGIN = { top: 14, right: 92, bottom: 34, left: 46 };
const NAME_HEIGHT = 14; // pixels from one name to the next

/**
 * Round numbers from 0 or `low` to `high`, about `count` of them.
 * @param {number} low
 * @param {number} high
 */
export function ticks(low, high, count = 4) {
  const span = high - low || 1;
  const rough = span / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step =
    [1, 2, 2.5, 5, 10].map((n) => n * power).find((size) => span / size <= count + 0.5) ?? 10 * power;
  const out = [];
  for (let x = Math.ceil(low / step) * step; x <= high + step * 1e-9; x += step)
    out.push(Number(x.toPrecision(12)));
  return out;
}

/**
 * @typedef {object} ChartFrame a chart's size, and where its values lie in it
 * @property {number} width
 * @property {number} height
 * @property {typeof MARGIN} margin
 * @property {(x: number) => number} across
 * @property {(y: number) => number} up
 */

/**
 * The frame of a chart in a box of this size.
 * @param {Pick<ChartData, "series" | "x" | "y">} data
 * @param {number} width
 * @param {number} height
 * @returns {ChartFrame}
 */
export function chartFrame({ series, x, y }, width, height) {
  const right = series.some((one) => one.name) ? (width < 420 ? 76 : MARGIN.right) : 14;
  const margin = { ...MARGIN, right };
  const [wide, high] = [width - margin.left - margin.right, height - margin.top - margin.bottom];
  return {
    width,
    height,
    margin,
    across: (value) => margin.left + ((value - x.low) / (x.high - x.low || 1)) * wide,
    up: (value) => height - margin.bottom - ((value - y.low) / (y.high - y.low || 1)) * high,
  };
}

/**
 * Both axes, with lines across.
 * @param {ChartFrame} frame
 * @param {Pick<ChartData, "x" | "y">} data
 */
export function chartAxes({ width, height, margin, across, up }, { x, y }) {
  const group = svgElement("g", { class: "chart-axes" });
  const [left, right, bottom] = [margin.left, width - margin.right, height - margin.bottom];
  for (const tick of ticks(y.low, y.high)) {
    group.append(
      svgElement("line", { x1: left, x2: right, y1: up(tick), y2: up(tick) }),
      svgElement("text", { x: left - 8, y: up(tick) + 4, "text-anchor": "end" }, y.say(tick)),
    );
  }
  for (const tick of ticks(x.low, x.high, Math.max(2, Math.floor((right - left) / 90))))
    group.append(
      svgElement("text", { x: across(tick), y: bottom + 16, "text-anchor": "middle" }, x.say(tick)),
    );
  group.append(svgElement("text", { class: "chart-title", x: left, y: height - 5 }, x.title));
  group.append(svgElement("text", { class: "chart-title", x: left, y: 9 }, y.title));
  return group;
}

/**
 * The line at a place on the x axis.
 * @param {ChartFrame} frame
 * @param {number} mark
 */
function markLine({ height, margin, across }, mark) {
  const [x1, y1, y2] = [across(mark), margin.top, height - margin.bottom];
  return svgElement("line", { class: "chart-mark", x1, x2: x1, y1, y2 });
}

/**
 * A line through points; a point that stands alone is a dot.
 * @param {ChartFrame} frame
 * @param {ChartAxis} y
 * @param {[number, number][]} points
 * @param {string} kind
 */
function curve({ across, up }, y, points, kind) {
  /** @param {[number, number]} point */
  const place = ([a, b]) => `${across(a).toFixed(1)} ${up(Math.min(y.high, Math.max(y.low, b))).toFixed(1)}`;
  if (points.length > 1)
    return svgElement("path", { class: `chart-line ${kind}`, d: `M${points.map(place).join("L")}` });
  const [[a, b]] = points;
  return svgElement("circle", { class: `chart-dot ${kind}`, cx: across(a), cy: up(b), r: 4 });
}

/** @typedef {{ name: string, kind: string, x: number, y: number }} ChartName */

/**
 * Names at the ends of their lines, from top to bottom, each below the one before.
 * @param {ChartName[]} names
 */
export function spreadNames(names) {
  const sorted = names.toSorted((a, b) => a.y - b.y);
  let next = -Infinity;
  return sorted.map((one) => {
    const y = Math.max(one.y, next);
    next = y + NAME_HEIGHT;
    return { ...one, y };
  });
}

/**
 * The picture, and the curves in it that can be pointed at.
 * @param {ChartData} data
 * @param {number} width
 * @param {number} height
 */
function drawing(data, width, height) {
  const { series, y, mark, label, description } = data;
  const frame = chartFrame(data, width, height);
  const box = { width, height, viewBox: `0 0 ${width} ${height}` };
  const picture = svgElement("svg", { ...box, role: "img", "aria-label": label });
  if (description) picture.setAttribute("aria-description", description);
  picture.append(chartAxes(frame, data));
  /** @type {ChartCurve[]} */
  const curves = [];
  if (known(mark)) picture.append(markLine(frame, mark));
  /** @type {ChartName[]} */
  const names = [];
  for (const { name, kind, points, id, about = "" } of series) {
    const shown = /** @type {[number, number][]} */ (points.filter(([, value]) => known(value)));
    if (!shown.length) continue;
    const line = curve(frame, y, shown, kind);
    picture.append(line);
    if (id) {
      const places = shown.map(([a, b]) => /** @type {Point} */ ([frame.across(a), frame.up(b)]));
      const values = shown.map(([a, b]) => `${y.say(b)} at ${data.x.title} ${data.x.say(a)}`);
      curves.push({ id, about, line, places, values });
    }
    const [endX, endY] = last(shown);
    if (name) names.push({ name, kind, x: frame.across(endX) + 6, y: frame.up(Math.min(y.high, endY)) });
  }
  for (const one of spreadNames(names))
    picture.append(svgElement("text", { class: `chart-name ${one.kind}`, x: one.x, y: one.y + 4 }, one.name));
  return { picture, curves };
}

/**
 * A chart that fills its box; `draw(data)` shows other data. Curves that have an id can be pointed at, with
 * `pointer.point(id)` as well, and chosen.
 * @param {number} [height]
 * @param {(id: string) => void} [choose]
 */
export function chart(height = 240, choose = () => {}) {
  const box = element("div.chart");
  box.style.height = `${height}px`;
  /** @type {ChartData | null} */
  let data = null;
  const pointer = new ChartPointer(box, choose);
  const paint = () => {
    const width = box.clientWidth;
    if (!data || width < 60) return;
    const { picture, curves } = drawing(data, width, height);
    const { id } = pointer;
    pointer.curves = curves;
    box.replaceChildren(picture, pointer.tip);
    pointer.point(id);
  };
  new ResizeObserver(paint).observe(box);
  const draw = (/** @type {ChartData} */ next) => {
    data = next;
    paint();
  };
  return Object.assign(box, { draw, pointer });
}
