// @ts-check
// The page as it looks on paper: in light colours on white, in the fonts that figures have. For as long as something
// is drawn; no reader sees it.

import { ramp } from "../parts/colours.js";

/**
 * Runs `work`, which may not wait for anything, with the page in the look of paper. The event "regard-paper" on the
 * window says that the layout has changed, and that it is as before.
 * @template T
 * @param {() => T} work
 * @returns {T}
 */
export function onPaper(work) {
  const { dataset, classList } = document.documentElement;
  const before = dataset.theme;
  dataset.theme = "light";
  classList.add("on-paper");
  dispatchEvent(new Event("regard-paper"));
  try {
    return work();
  } finally {
    classList.remove("on-paper");
    if (before === undefined) delete dataset.theme;
    else dataset.theme = before;
    dispatchEvent(new Event("regard-paper"));
  }
}

/** @type {Map<number, number> | null} */
let known = null;

/**
 * From colours of the dark ramps to those of the light ones, as pixels; what is already drawn may be in either.
 * @returns {Map<number, number>}
 */
function lightOf() {
  if (known) return known;
  known = new Map();
  for (const signed of [true, false]) {
    const [dark, light] = [ramp("dark", signed).pixels, ramp("light", signed).pixels];
    dark.forEach((pixel, step) => known?.set(pixel, light[step]));
  }
  return known;
}

/**
 * A colour of a dark ramp as that of the light one; others stay as they are.
 * @param {Colour} colour
 * @returns {Colour}
 */
export function lightColour([red, green, blue, alpha]) {
  const pixel = lightOf().get(((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0);
  return pixel === undefined
    ? [red, green, blue, alpha]
    : [pixel & 255, (pixel >> 8) & 255, (pixel >> 16) & 255, alpha];
}

/**
 * Pixels that were painted with a dark ramp, in colours of the light one.
 * @param {PixelImage} image
 * @returns {PixelImage}
 */
export function lightImage({ width, height, data }) {
  const words = new Uint32Array(data.slice().buffer);
  const light = lightOf();
  words.forEach((word, n) => (words[n] = light.get(word) ?? word));
  return { width, height, data: new Uint8ClampedArray(words.buffer) };
}
