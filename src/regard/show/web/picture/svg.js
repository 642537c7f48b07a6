// @ts-check
// A picture as SVG, with real text.

import { enlarged } from "./pixels.js";

/** @type {Record<PrintFont["family"], string>} */
const FAMILIES = {
  sans: "Helvetica, Arial, 'Liberation Sans', sans-serif",
  serif: "Times, 'Times New Roman', 'Liberation Serif', serif",
  mono: "'Courier New', 'Liberation Mono', Courier, monospace",
};

/** What XML cannot hold: control characters, and halves of surrogate pairs that stand alone. */
const CONTROL = /[\u0000-\u0008\u000b\u000c\u000e-\u001f\ufffe\uffff]/g;
const ALONE = /[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g;

/** @param {number} value */
const tidy = (value) => String(Math.round(value * 100) / 100);

/** @param {string | number} text */
const escaped = (text) =>
  String(text)
    .replace(CONTROL, "\ufffd")
    .replace(ALONE, "\ufffd")
    .replace(/[&<>"']/g, (mark) => `&#${mark.charCodeAt(0)};`);

/** @param {Record<string, string | number | null | undefined>} attributes */
const listed = (attributes) =>
  Object.entries(attributes)
    .filter(([, value]) => value !== null && value !== undefined)
    .map(([name, value]) => ` ${name}="${escaped(value ?? "")}"`)
    .join("");

/**
 * The picture as text; `encode` gives an image as an address of data.
 * @param {Picture} picture
 * @param {(image: PixelImage) => string} encode
 */
export function writeSvg({ title, width, height, commands }, encode) {
  const size = { xmlns: "http://www.w3.org/2000/svg", width, height, viewBox: `0 0 ${width} ${height}` };
  const ground = `<rect${listed({ width, height, fill: "#fff" })}/>`;
  const lines = commands.map((command, n) => line(command, n, encode));
  return `<svg${listed(size)}>\n<title>${escaped(title)}</title>\n${ground}\n${lines.join("\n")}\n</svg>\n`;
}

/**
 * @param {DrawingCommand} command
 * @param {number} n
 * @param {(image: PixelImage) => string} encode
 */
function line(command, n, encode) {
  switch (command.kind) {
    case "end":
      return "</g>";
    case "clip":
      return (
        `<clipPath id="clip${n}"><path d="${written(command.path)}"/></clipPath>` +
        `<g clip-path="url(#clip${n})">`
      );
    case "fill":
      return `<path${listed({ d: written(command.path), ...paint("fill", command.colour) })}/>`;
    case "stroke":
      return `<path${listed({
        d: written(command.path),
        fill: "none",
        ...paint("stroke", command.colour),
        "stroke-width": tidy(command.width),
        "stroke-dasharray": command.dash.length ? command.dash.map(tidy).join(" ") : null,
      })}/>`;
    case "text":
      return textElement(command);
    case "image":
      return imageElement(command, encode);
  }
}

/** @param {Segment[]} path */
function written(path) {
  return path.map(([letter, ...places]) => letter + places.map(tidy).join(" ")).join("");
}

/**
 * @param {"fill" | "stroke"} name
 * @param {Colour} colour
 */
function paint(name, [red, green, blue, alpha]) {
  const hex = [red, green, blue].map((byte) => Math.round(byte).toString(16).padStart(2, "0")).join("");
  return { [name]: `#${hex}`, [`${name}-opacity`]: alpha < 1 ? tidy(alpha) : null };
}

/** @param {TextCommand} command */
function textElement({ text, font, colour, matrix, width, align }) {
  const [a, b, c, d, e, f] = matrix;
  const upright = a === 1 && b === 0 && c === 0 && d === 1;
  const along = { left: 0, center: width / 2, right: width }[align]; // where the anchor is
  const place = upright
    ? { x: tidy(e + along), y: tidy(f) }
    : { x: tidy(along), transform: `matrix(${[a, b, c, d, e, f].map(tidy).join(" ")})` };
  const attributes = {
    ...place,
    ...paint("fill", colour),
    "font-size": tidy(font.size),
    "font-family": FAMILIES[font.family],
    "font-weight": font.bold ? "bold" : null,
    "font-style": font.italic ? "italic" : null,
    "text-anchor": { left: null, center: "middle", right: "end" }[align],
    "unicode-bidi": "isolate",
    "xml:space": "preserve",
  };
  return `<text${listed(attributes)}>${escaped(text)}</text>`;
}

/**
 * @param {ImageCommand} command
 * @param {(image: PixelImage) => string} encode
 */
function imageElement({ image, matrix, smooth }, encode) {
  const [a, b, c, d] = matrix;
  const large = smooth ? image : enlarged(image, Math.hypot(a, b));
  const matrixOf = [a / large.width, b / large.width, c / large.height, d / large.height];
  const places = matrixOf.map((value) => String(Number(value.toPrecision(6))));
  const attributes = {
    width: large.width,
    height: large.height,
    transform: `matrix(${places.join(" ")} ${tidy(matrix[4])} ${tidy(matrix[5])})`,
    href: encode(large),
    style: `image-rendering:${smooth ? "auto" : "pixelated"}`,
  };
  return `<image${listed(attributes)}/>`;
}
