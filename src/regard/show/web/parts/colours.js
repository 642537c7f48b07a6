// @ts-check
// From a weight to a colour. The ramps are made in OKLab, with lightness in even steps, so that equal
// differences look equal; hue moves a little along the way, and lightness alone carries the order.

import { theme } from "./theme.js";

const RAMPS = {
  light: { lightness: [0.972, 0.27], chroma: [0.008, 0.15, 0.09], hue: [225, 280] },
  dark: { lightness: [0.235, 0.955], chroma: [0.02, 0.14, 0.06], hue: [275, 215] },
};

/**
 * Signed numbers: zero is the ground, and lightness alone says how far from it a number is. The hues, blue and
 * vermilion, differ for every kind of colour vision.
 */
const DIVERGING = {
  light: { lightness: [0.972, 0.4], below: { chroma: 0.17, hue: 258 }, above: { chroma: 0.16, hue: 38 } },
  dark: { lightness: [0.235, 0.82], below: { chroma: 0.12, hue: 240 }, above: { chroma: 0.13, hue: 58 } },
};
const STEPS = 256;
const GREY = Math.sqrt(1.05 * 0.05) - 0.05; // the luminance on which black and white ink read alike
const ZERO = 128; // the step of a diverging ramp that is the ground
/** @type {Map<string, Ramp>} */
const made = new Map();

/**
 * sRGB bytes of a colour in OKLCh.
 * @param {number} lightness
 * @param {number} chroma
 * @param {number} hue
 */
function rgb(lightness, chroma, hue) {
  const a = chroma * Math.cos((hue * Math.PI) / 180);
  const b = chroma * Math.sin((hue * Math.PI) / 180);
  const l = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const m = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const s = (lightness - 0.0894841775 * a - 1.291485548 * b) ** 3;
  return [
    4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s,
    -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
    -0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s,
  ].map((x) => {
    const curved = x <= 0.0031308 ? 12.92 * x : 1.055 * Math.max(x, 0) ** (1 / 2.4) - 0.055;
    return Math.round(255 * Math.min(1, Math.max(0, curved)));
  });
}

/**
 * The ramp of a theme: 256 colours as [r, g, b], and the same as pixels. That of signed numbers diverges from
 * its middle.
 */
export function ramp(name = theme(), signed = false) {
  const key = `${name} ${signed}`;
  const known = made.get(key);
  if (known) return known;
  const colourOf = signed ? diverging : sequential;
  const colours = Array.from({ length: STEPS }, (_, step) => colourOf(name, step));
  const pixels = new Uint32Array(colours.map(([r, g, b]) => (255 << 24) | (b << 16) | (g << 8) | r));
  made.set(key, { colours, pixels });
  return { colours, pixels };
}

/**
 * @param {ThemeName} name
 * @param {number} step
 */
function sequential(name, step) {
  const { lightness, chroma, hue } = RAMPS[name];
  const t = step / (STEPS - 1);
  const arc = (1 - t) ** 2 * chroma[0] + 2 * t * (1 - t) * chroma[1] + t ** 2 * chroma[2];
  return rgb(lightness[0] + t * (lightness[1] - lightness[0]), arc, hue[0] + t * (hue[1] - hue[0]));
}

/**
 * @param {ThemeName} name
 * @param {number} step
 */
function diverging(name, step) {
  const { lightness, below, above } = DIVERGING[name];
  const { chroma, hue } = step < ZERO ? below : above;
  const t = Math.min(1, Math.abs(step - ZERO) / (STEPS - 1 - ZERO));
  const arc = chroma * Math.sin((t * Math.PI) / 2);
  return rgb(lightness[0] + t * (lightness[1] - lightness[0]), arc, hue);
}

/**
 * A colour of the ramp for the style of an element or a canvas, t from 0 to 1.
 * @param {number} t
 */
export function css(t, name = theme(), signed = false) {
  return `rgb(${colourAt(t, name, signed).join(" ")})`;
}

/**
 * Gives an element the ground of a place on the ramp and the ink that reads best on it, in whatever theme it is seen;
 * neither for null.
 * @param {ElementCSSInlineStyle["style"]} style
 * @param {number | null} t
 */
export function colourCell(style, t, signed = false) {
  const inThemes = (/** @type {typeof css} */ of) =>
    t === null ? "" : `light-dark(${of(t, "light", signed)}, ${of(t, "dark", signed)})`;
  Object.assign(style, { backgroundColor: inThemes(css), color: inThemes(inkOn) });
}

/**
 * The colour at a place of the ramp; what lies beyond its ends has the colour of the end.
 * @param {number} t
 * @param {ThemeName} name
 * @param {boolean} signed
 */
function colourAt(t, name, signed) {
  return ramp(name, signed).colours[Math.round(Math.min(1, Math.max(0, t)) * (STEPS - 1))];
}

/**
 * The ink that reads best on a colour of the ramp, black or white: its contrast is at least 4.5:1.
 * @param {number} t
 */
export function inkOn(t, name = theme(), signed = false) {
  return luminance(colourAt(t, name, signed)) > GREY ? "#000000" : "#ffffff";
}

/**
 * The relative luminance of an sRGB colour, from 0 to 1, as the Web Content Accessibility Guidelines define it.
 * @param {number[]} colour bytes
 */
function luminance(colour) {
  const [r, g, b] = colour.map((byte) => {
    const x = byte / 255;
    return x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

/**
 * What turns a weight into a place on the ramp.
 * `scale` is "linear" or "log", `top` the weight at its end, `bottom` the least that a log scale shows. On the scale
 * of signed numbers zero is in the middle, and both halves are alike.
 * @param {{ scale: string, top: number, bottom: number, signed?: boolean }} options
 * @returns {ColourScale}
 */
export function makeScale({ scale, top, bottom, signed = false }) {
  const span = Math.log(top / bottom);
  const log = scale === "log";
  /** @type {ColourScale["at"]} */
  const along = log
    ? (weight) => (weight <= bottom ? 0 : Math.min(1, Math.log(weight / bottom) / span))
    : (weight) => Math.min(1, weight / top);
  /** @type {ColourScale["at"]} */
  const inBoth = (weight) => (1 + Math.sign(weight) * along(Math.abs(weight))) / 2;
  return { scale, top, bottom: log ? bottom : 0, signed, at: signed ? inBoth : along };
}

/**
 * Adds the lines to a path, `every` so many pixels along the edges of a box.
 * @param {Drawing} context
 * @param {{ left: number, top: number, width: number, height: number }} box
 * @param {number} every
 */
export function traceHatch(context, { left, top, width, height }, every) {
  for (let at = every - 1; at < width + height; at += every) {
    context.moveTo(left + Math.max(0, at - height), top + Math.min(at, height));
    context.lineTo(left + Math.min(at, width), top + Math.max(0, at - width));
  }
}
