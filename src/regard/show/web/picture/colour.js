// @ts-check
// Colours of style sheets as numbers. What is not written in one of the two usual ways is asked of a canvas.

const HEX = /^#([0-9a-f]{3,8})$/i;
const RGB = /^rgba?\(\s*([\d.]+)[\s,]+([\d.]+)[\s,]+([\d.]+)(?:[\s,/]+([\d.]+%?))?\s*\)$/;
/** @type {Map<string, Colour>} */
const known = new Map();

/**
 * @param {string} text as in "#fff", "rgb(1 2 3)", "rgba(1, 2, 3, 0.5)", "oklab(…)"
 * @returns {Colour}
 */
export function parseColour(text) {
  const found = known.get(text) ?? fromHex(text) ?? fromRgb(text) ?? fromCanvas(text);
  if (known.size < 4096) known.set(text, found);
  return found;
}

/**
 * @param {string} text
 * @returns {Colour | null}
 */
function fromHex(text) {
  const digits = HEX.exec(text)?.[1];
  if (!digits) return null;
  const each = digits.length < 6 ? 1 : 2;
  const parts = Array.from({ length: digits.length / each }, (_, n) =>
    digits.slice(n * each, (n + 1) * each),
  );
  const [red, green, blue, alpha = 255] = parts.map((part) => parseInt(each === 1 ? part + part : part, 16));
  return [red, green, blue, alpha / 255];
}

/**
 * @param {string} text
 * @returns {Colour | null}
 */
function fromRgb(text) {
  const found = RGB.exec(text);
  if (!found) return null;
  const [red, green, blue] = found.slice(1, 4).map(Number);
  const alpha = found[4] ?? "1";
  return [red, green, blue, alpha.endsWith("%") ? parseFloat(alpha) / 100 : Number(alpha)];
}

/**
 * @param {string} text
 * @returns {Colour}
 */
function fromCanvas(text) {
  if (typeof OffscreenCanvas === "undefined") throw new Error(`cannot read the colour ${text}`);
  const context = new OffscreenCanvas(1, 1).getContext("2d");
  if (!context) throw new Error("This browser cannot draw on a canvas.");
  context.fillStyle = text;
  context.fillRect(0, 0, 1, 1);
  const [red, green, blue, alpha] = context.getImageData(0, 0, 1, 1).data;
  return [red, green, blue, alpha / 255];
}
