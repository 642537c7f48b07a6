// @ts-check
// Lines over a common axis, as SVG. It knows points; it does not know what they measure.

import { known, last } from "./arrays.js";
import { element } from "./dom.js";

const SPACE = "http://www.w3.org/2000/svg";
const MARGIN = { top: 14, right: 92, bottom: 34, left: 46 };

/**
 * @param {string} name
 * @param {Record<string, string | number>} attributes
 * @param {string | null} [text]
 */
function svg(name, attributes, text = null) {
  const made = document.createElementNS(SPACE, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, String(value));
  if (text !== null) made.textContent = text;
  return made;
}

/**
 * Round numbers from 0 or `low` to `high`, about `count` of them.
 * @param {number} low
 * @param {number} high
 * @param {number} [count]
 * @returns {number[]}
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
 * @param {[number, number | null]} point
 * @returns {point is [number, number]}
 */
function isWhole(point) {
  return known(point[1]);
}

/**
 * A chart that fills its box. `draw({series, x, y, mark, label})`: series are {name, kind, points: [[x, y]…]},
 * drawn in order; `x` and `y` are {title, low, high, say}; `mark` is a place on the x axis.
 * @param {number} [height]
 */
export function chart(height = 240) {
  const box = element("div", { class: "chart" });
  box.style.height = `${height}px`;
  /** @type {ChartData | null} */
  let given = null;

  function paint() {
    const width = box.clientWidth;
    if (!given || width < 60) return;
    const { series, x, y, mark, label } = given;
    const margin = {
      ...MARGIN,
      right: series.some((one) => one.name) ? (width < 420 ? 76 : MARGIN.right) : 14,
    };
    /** @param {number} value */
    const across = (value) =>
      margin.left + ((value - x.low) / (x.high - x.low || 1)) * (width - margin.left - margin.right);
    /** @param {number} value */
    const up = (value) =>
      height -
      margin.bottom -
      ((value - y.low) / (y.high - y.low || 1)) * (height - margin.top - margin.bottom);
    const drawing = svg("svg", {
      width,
      height,
      viewBox: `0 0 ${width} ${height}`,
      role: "img",
      "aria-label": label,
    });
    const axes = svg("g", { class: "chart-axes" });
    for (const tick of ticks(y.low, y.high)) {
      axes.append(
        svg("line", { x1: margin.left, x2: width - margin.right, y1: up(tick), y2: up(tick) }),
        svg("text", { x: margin.left - 8, y: up(tick) + 4, "text-anchor": "end" }, y.say(tick)),
      );
    }
    for (const tick of ticks(
      x.low,
      x.high,
      Math.max(2, Math.floor((width - margin.left - margin.right) / 90)),
    )) {
      axes.append(
        svg(
          "text",
          { x: across(tick), y: height - margin.bottom + 16, "text-anchor": "middle" },
          x.say(tick),
        ),
      );
    }
    axes.append(svg("text", { class: "chart-title", x: margin.left, y: height - 5 }, x.title));
    axes.append(svg("text", { class: "chart-title", x: margin.left, y: 9 }, y.title));
    drawing.append(axes);
    if (mark !== null && mark !== undefined) {
      drawing.append(
        svg("line", {
          class: "chart-mark",
          x1: across(mark),
          x2: across(mark),
          y1: margin.top,
          y2: height - margin.bottom,
        }),
      );
    }
    /** @type {{ name: string, kind: string, x: number, y: number }[]} */
    const names = [];
    for (const { name, kind, points } of series) {
      const shown = points.filter(isWhole);
      if (!shown.length) continue;
      /** @param {[number, number]} point */
      const place = ([a, b]) =>
        `${across(a).toFixed(1)} ${up(Math.min(y.high, Math.max(y.low, b))).toFixed(1)}`;
      drawing.append(svg("path", { class: `chart-line ${kind}`, d: `M${shown.map(place).join("L")}` }));
      if (shown.length === 1) {
        drawing.append(
          svg("circle", { class: `chart-dot ${kind}`, cx: across(shown[0][0]), cy: up(shown[0][1]), r: 2.5 }),
        );
      }
      if (name)
        names.push({ name, kind, x: across(last(shown)[0]) + 6, y: up(Math.min(y.high, last(shown)[1])) });
    }
    // Names stand at the ends of their lines, and make room for each other.
    names
      .sort((a, b) => a.y - b.y)
      .forEach((one, n) => {
        if (n) one.y = Math.max(one.y, names[n - 1].y + 14);
        drawing.append(svg("text", { class: `chart-name ${one.kind}`, x: one.x, y: one.y + 4 }, one.name));
      });
    box.replaceChildren(drawing);
  }

  new ResizeObserver(paint).observe(box);
  /** @param {ChartData} what */
  const draw = (what) => {
    given = what;
    paint();
  };
  return Object.assign(box, { draw });
}
