// @ts-check
// A list of numbers as something to see: numbers where they are few, a strip of colours where they are many.
// Colours go from one hue through the paper to another, and mean the same in every strip of a step.

import { contextOf, element } from "../parts/dom.js";
import { number } from "../data/format.js";
import { theme } from "../parts/theme.js";
import { drawings } from "../picture/canvas_drawings.js";

const FEW = 4; // numbers that are written out
const ENDS = {
  light: [
    [164, 60, 20],
    [24, 79, 140],
  ],
  dark: [
    [255, 160, 104],
    [122, 190, 255],
  ],
};
const MIDDLE = { light: [241, 239, 233], dark: [34, 37, 43] };

/**
 * The greatest size among some vectors, which stands at both ends of the colours.
 * @param {number[][]} vectors
 */
export function reach(vectors) {
  let most = 0;
  for (const vector of vectors) for (const x of vector) most = Math.max(most, Math.abs(x));
  return most || 1;
}

/**
 * One vector; `most` is what the strongest colours stand for, `name` what a screen reader says of it.
 * @param {number[]} values
 * @param {number} most
 * @param {string} name
 */
export function vector(values, most, name) {
  if (values.length <= FEW) {
    return element("span.vector", `(${values.map((x) => number(x, 3)).join("  ")})`);
  }
  const canvas = element("canvas.strip", { width: values.length, height: 1, role: "img" });
  const [low, high] = [Math.min(...values), Math.max(...values)];
  canvas.setAttribute(
    "aria-label",
    `${name}: ${values.length} numbers from ${number(low, 2)} to ${number(high, 2)}`,
  );
  canvas.addEventListener("pointermove", (event) => {
    const box = canvas.getBoundingClientRect();
    const at = Math.min(
      values.length - 1,
      Math.floor(((event.clientX - box.left) / box.width) * values.length),
    );
    canvas.title = `${name}[${at}] = ${number(values[at], 5)}`;
  });
  paint(canvas, values, most);
  drawings.set(canvas, (drawing, { width, height }) => {
    const wide = width / values.length;
    values.forEach((x, i) => {
      drawing.fillStyle = `rgb(${shade(x, most).map(Math.round).join(" ")})`;
      drawing.fillRect(i * wide, 0, wide, height);
    });
  });
  return canvas;
}

/**
 * @param {HTMLCanvasElement} canvas
 * @param {number[]} values
 * @param {number} most
 */
function paint(canvas, values, most) {
  const context = contextOf(canvas);
  const image = context.createImageData(values.length, 1);
  values.forEach((x, i) => image.data.set([...shade(x, most), 255], 4 * i));
  context.putImageData(image, 0, 0);
}

/**
 * A number's colour in this theme: red, green, blue.
 * @param {number} x
 * @param {number} most
 */
function shade(x, most) {
  const t = Math.min(1, Math.abs(x) / most) ** 0.75; // small numbers are to be seen as well
  const end = ENDS[theme()][x < 0 ? 0 : 1];
  return MIDDLE[theme()].map((middle, c) => middle + t * (end[c] - middle));
}

/**
 * All numbers of some named vectors, to be unfolded.
 * @param {NamedVector[]} vectors
 */
export function allNumbers(vectors) {
  const width = Math.max(...vectors.map(({ name }) => name.length));
  const lines = vectors.map(
    ({ name, values }) => `${name.padEnd(width)}  ${values.map((x) => number(x, 4).padStart(8)).join(" ")}`,
  );
  return element(
    "details.all-numbers",
    element("summary", "All numbers"),
    element("pre", { tabindex: "0" }, lines.join("\n")),
  );
}
