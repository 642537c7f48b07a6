// @ts-check
// The colour bar with its numbers, and what is to be known about what is not in the picture.

import { last } from "../common/arrays.js";
import { css } from "../common/colours.js";
import { contextOf, element } from "../common/dom.js";
import { exact } from "../common/format.js";
import { theme } from "../common/theme.js";

/**
 * @typedef {object} LegendOptions
 * @property {ColourScale} scale
 * @property {boolean} clipped whether weights above the scale's end are shown in its colour
 * @property {string} reduce
 * @property {number} z
 * @property {{ key: number, share: number, token: string } | null} sink
 * @property {boolean} boundary
 */

/**
 * Fills `root`; returns {show({scale, clipped, reduce, z, sink, boundary})}.
 * @param {HTMLElement} root
 */
export function legend(root) {
  const canvas = element("canvas", { width: 240, height: 1, "aria-hidden": "true" });
  const ticks = element("div", { class: "ticks" });
  const bar = element("div", { class: "bar", role: "img" });
  bar.append(canvas, ticks);
  const mask = element("span", { class: "key" });
  mask.append(element("i"), "hidden by the mask");
  const prompt = element("span", { class: "key" });
  prompt.append(element("i", { class: "dashed" }), "end of the prompt");
  const words = element("p", { class: "small quiet" });
  const hidden = element("p", { class: "small", id: "hidden-mass" });
  root.append(bar, mask, prompt, words, hidden);
  let shown = "";

  return {
    /** @param {LegendOptions} what */
    show({ scale, clipped, reduce, z, sink, boundary }) {
      prompt.hidden = !boundary;
      const ends = [scale.scale, scale.top, scale.bottom, clipped];
      const name = [theme(), ...ends, reduce, z, sink?.key, sink?.share].join(" ");
      if (name === shown) return; // a map that is moved draws often
      shown = name;
      paint(canvas);
      const marks = marksOf(scale, clipped);
      ticks.replaceChildren(
        ...marks.map(([t, text]) => {
          const mark = element("span", { text });
          mark.style.left = `${100 * t}%`;
          return mark;
        }),
      );
      bar.setAttribute("aria-label", `Colours from ${marks[0][1]} to ${last(marks)[1]}, ${scale.scale}`);
      words.textContent = noteOf(reduce, z);
      hidden.hidden = !sink;
      if (sink) {
        const share = `${(100 * sink.share).toFixed(1)}%`;
        hidden.replaceChildren(
          `Key ${sink.key} `,
          element("span", { class: "token", text: sink.token }),
          ` receives ${share} of all attention and is drawn separately. The colours show how each query divides the rest.`,
        );
        hidden.dataset.share = String(sink.share);
      }
    },
  };
}

/**
 * The numbers of a colour bar: [[place from 0 to 1, text]].
 * @param {ColourScale} scale
 * @param {boolean} clipped
 * @returns {FigureWords["marks"]}
 */
export function marksOf(scale, clipped) {
  const marks = scale.scale === "log" ? decades(scale) : halves(scale);
  if (clipped) last(marks)[1] = `≥ ${last(marks)[1]}`;
  return marks;
}

/**
 * What one cell stands for.
 * @param {string} reduce
 * @param {number} z
 */
export function noteOf(reduce, z) {
  if (z === 0) return "One cell is one weight.";
  const size = 2 ** z;
  return reduce === "max"
    ? `One cell is the greatest weight of ${size} × ${size}.`
    : `One cell is ${size} × ${size} weights: attention mass, summed over keys and averaged over queries.`;
}

/** @param {HTMLCanvasElement} canvas */
function paint(canvas) {
  const context = contextOf(canvas);
  for (let x = 0; x < canvas.width; x++) {
    context.fillStyle = css(x / (canvas.width - 1));
    context.fillRect(x, 0, 1, 1);
  }
}

/**
 * @param {ColourScale} scale
 * @returns {FigureWords["marks"]}
 */
function halves(scale) {
  return [0, 0.5, 1].map((t) => [t, exact(scale.weight(t))]);
}

/**
 * @param {ColourScale} scale
 * @returns {FigureWords["marks"]}
 */
function decades(scale) {
  /** @type {FigureWords["marks"]} */
  const marks = [[0, `≤ ${power(scale.bottom)}`]];
  for (let decade = scale.bottom * 10; decade < scale.top * 0.6; decade *= 10) {
    marks.push([scale.at(decade), power(decade)]);
  }
  return [...marks, [1, exact(scale.top)]];
}

/** @param {number} value */
function power(value) {
  const exponent = Math.round(Math.log10(value));
  return exponent >= -3 ? String(Number(value.toPrecision(1))) : `1e−${-exponent}`;
}
