// @ts-check
// SVG as text: numbers, attributes and colours, and nothing in them that is taken for a tag.

/** What XML cannot hold, beside halves of surrogate pairs that stand alone. */
const CONTROL = /[\u0000-\u0008\u000b\u000c\u000e-\u001f\ufffe\uffff]/g;

/** @param {number} value */
export function tidy(value) {
  return String(Math.round(value * 100) / 100);
}

/** @param {string | number} text */
export function escaped(text) {
  return String(text)
    .toWellFormed()
    .replace(CONTROL, "\ufffd")
    .replace(/[&<>"']/g, (mark) => `&#${mark.charCodeAt(0)};`);
}

/** @param {Record<string, string | number | null>} attributes those that are null are left out */
export function listed(attributes) {
  return Object.entries(attributes)
    .map(([name, value]) => (value === null ? "" : ` ${name}="${escaped(value)}"`))
    .join("");
}

/**
 * A colour as attributes of SVG.
 * @param {"fill" | "stroke"} name
 * @param {Colour} colour
 * @returns {Record<string, string | null>}
 */
export function paint(name, [red, green, blue, alpha]) {
  const hex = [red, green, blue].map((byte) => Math.round(byte).toString(16).padStart(2, "0")).join("");
  return { [name]: `#${hex}`, [`${name}-opacity`]: alpha < 1 ? tidy(alpha) : null };
}
