// @ts-check
// The page as it looks on paper: in light colours on white, in the fonts that figures have. For as long as something
// is drawn; no reader sees it.

import { ramp } from "../parts/colours.js";

/**
 * Runs `work`, which may not wait for anything, with the page in the look of paper. The event "regard-paper" on the
 * window says that the layout has changed, and that it is as before.
 * @template T
 * @param {() => T} work
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

/**
 * Pixels that were painted with a dark ramp, in colours of the light one; those of no dark ramp stay as they are.
 * @param {PixelImage} image
 * @returns {PixelImage}
 */
export function lightImage({ width, height, data }) {
  const words = new Uint32Array(data.slice().buffer);
  /** @type {Map<number, number>} */
  const light = new Map();
  for (const signed of [true, false])
    ramp("dark", signed).pixels.forEach((pixel, n) => light.set(pixel, ramp("light", signed).pixels[n]));
  words.forEach((word, n) => (words[n] = light.get(word) ?? word));
  return { width, height, data: new Uint8ClampedArray(words.buffer) };
}
