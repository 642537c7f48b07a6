// @ts-check
// The colour bar with its numbers, and what is to be known about what is not in the picture.

import { last } from "../data/arrays.js";
import { percent } from "../data/format.js";
import { PLAIN, spell } from "../data/quantity.js";
import { settings } from "../data/settings.js";
import { axisOf, labelAt } from "../data/tokens.js";
import { UNIT } from "../data/units.js";
import { paintRamp } from "../parts/controls.js";
import { element } from "../parts/dom.js";
import { theme } from "../parts/theme.js";

/**
 * Fills `root`; `show` says what the colours of a scene mean.
 * @param {HTMLElement} root
 */
export function legend(root) {
  const canvas = element("canvas", { width: 256, height: 1, "aria-hidden": "true" });
  const ticks = element("div.ticks");
  const bar = element("div.bar", { role: "img" }, canvas, ticks);
  const mask = element("span.key", element("i"), "hidden by the mask");
  const prompt = element("span.key", element("i.dashed"), "end of the prompt");
  const words = element("p.small.quiet");
  const hidden = element("p.small", { id: "hidden-mass" });
  root.append(bar, mask, prompt, words, hidden);
  let shown = "";

  return {
    /**
     * @param {Scene} scene
     * @param {string} note what a cell stands for
     */
    show(scene, note) {
      const { quantity, sink, look, meta, text, layer } = scene;
      const { scale } = look;
      const clipped = isClipped(scene);
      prompt.hidden = !scene.boundary;
      mask.hidden = !hasHidden(scene);
      const ends = [scale.scale, scale.top, scale.bottom, scale.signed, clipped, quantity.shade];
      const name = [theme(), ...ends, note, sink?.key, sink?.share].join(" ");
      if (name === shown) return; // a map that is moved draws often
      shown = name;
      paintRamp(canvas, scale.signed);
      const marks = marksOf(scale, clipped, quantity);
      ticks.replaceChildren(...marks.map(([t, text]) => element("span", { "--at": `${100 * t}%` }, text)));
      bar.setAttribute("aria-label", `Colours from ${marks[0][1]} to ${last(marks)[1]}, ${scale.scale}`);
      words.textContent = note;
      hidden.hidden = !sink;
      if (sink) {
        hidden.replaceChildren(
          `Key ${sink.key} `,
          element("span.token", labelAt(axisOf(meta, text, layer, "keys"), sink.key, 16)),
          ` receives ${percent(sink.share)} of the attention of the queries that see it. The colours leave it out.`,
        );
        hidden.dataset.share = String(sink.share);
      }
    },
  };
}

const LAST_MARK = 0.82; // place on the bar up to which powers of ten are written

/** @typedef {[number, string][]} ColourMarks places from 0 to 1, with what is written there */

/**
 * Whether some of the numbers that are drawn lie beyond the end of the colours.
 * @param {Pick<Scene, "drawn">} scene
 */
export function isClipped({ drawn }) {
  return drawn.some(({ tile }) => tile?.clipped);
}

/**
 * The numbers of a colour bar: [[place from 0 to 1, text]].
 * @param {ColourScale} scale
 * @param {boolean} clipped
 * @param {Quantity} [quantity] that the numbers are of
 * @returns {ColourMarks}
 */
export function marksOf(scale, clipped, quantity = PLAIN) {
  if (scale.signed) return signedMarks(scale, clipped, quantity);
  /** @type {ColourMarks} */
  const halves = [0, 0.5, 1].map((t) => [t, spell(quantity, t * scale.top)]);
  const marks = scale.scale === "log" ? decades(scale, quantity) : halves;
  if (clipped) last(marks)[1] = `≥ ${last(marks)[1]}`;
  return marks;
}

/**
 * Zero in the middle, and the same number with both signs at the ends.
 * @param {ColourScale} scale
 * @param {boolean} clipped
 * @param {Quantity} quantity
 * @returns {ColourMarks}
 */
function signedMarks({ scale, top, bottom }, clipped, quantity) {
  const [below, beyond] = clipped ? ["≤ ", "≥ "] : ["", ""];
  return [
    [0, `${below}${spell(quantity, -top)}`],
    [0.5, scale === "log" ? `± ${power(bottom, quantity)}` : "0"],
    [1, `${beyond}${spell(quantity, top)}`],
  ];
}

/**
 * What one cell stands for.
 * @param {string} reduce
 * @param {number} z
 * @param {Quantity} quantity
 * @param {string} token that is predicted
 */
export function noteOf(reduce, z, quantity, token) {
  const { units, shade, position } = quantity;
  const size = 2 ** z;
  const single = size === 1 && units === "tokens";
  const what = {
    weights: single ? "one weight" : reduce === "max" ? "the greatest weight" : "attention mass",
    values: "weight × norm of what the key’s value adds",
    logit: `what the key adds to the logit of ${token}, if the query were the last`,
  }[shade];
  const of =
    size > 1 ? ` of ${size} × ${size} ${units}` : single ? "" : ` from ${UNIT[units]} to ${UNIT[units]}`;
  const pooled = single || reduce === "max" ? "" : ", summed over keys and averaged over queries";
  const row = shade === "logit" ? ` Row ${position} adds up to what the head adds.` : "";
  return `One cell${of} is ${what}${pooled}.${row}`;
}

/**
 * @param {ColourScale} scale
 * @param {Quantity} quantity
 * @returns {ColourMarks}
 */
function decades(scale, quantity) {
  /** @type {ColourMarks} */
  const marks = [[0, `≤ ${power(scale.bottom, quantity)}`]];
  // A mark close to the end would run into the number that stands there.
  for (let decade = scale.bottom * 10; scale.at(decade) < LAST_MARK; decade *= 10)
    marks.push([scale.at(decade), power(decade, quantity)]);
  return [...marks, [1, spell(quantity, scale.top)]];
}

/**
 * A power of ten, or another number to one digit.
 * @param {number} value
 * @param {Quantity} quantity
 */
function power(value, { shade, linear }) {
  if (shade === "weights" && !linear && value >= 1e-4) return percent(value);
  const exponent = Math.round(Math.log10(value));
  return exponent >= -3 ? String(Number(value.toPrecision(1))) : `1e−${-exponent}`;
}

/**
 * Whether a cell in the picture is hidden by the mask.
 * @param {Pick<Scene, "drawn" | "camera">} scene
 */
export function hasHidden({ drawn, camera }) {
  const { left, top, right, bottom } = camera.frame;
  return drawn.some(({ tile, z, i, j }) => {
    if (!tile) return false;
    const size = 2 ** z;
    const first = { row: i * settings.tile, col: j * settings.tile };
    for (let n = 0; n < tile.max.length; n++) {
      if (tile.max[n] >= 0) continue;
      const row = (first.row + Math.floor(n / tile.cols)) * size;
      const col = (first.col + (n % tile.cols)) * size;
      if (row + size > top && row < bottom && col + size > left && col < right) return true;
    }
    return false;
  });
}
