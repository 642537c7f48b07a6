// A canvas that writes SVG: it understands as much of a canvas's language as our drawings speak.

const FAMILY = /^(\d+(?:\.\d+)?)px (.*)$/;

/** From where a canvas sets a letter to its foot, in letters: not every program knows other baselines. */
const DOWN = { alphabetic: 0, middle: 0.35, top: 0.8 };
const LARGE = 4096; // pixels of an image, at most, to either side

const tidy = (value) => String(Math.round(value * 100) / 100);
/** What XML cannot hold: control characters, and halves of surrogate pairs that stand alone. */
const CONTROL = /[\u0000-\u0008\u000b\u000c\u000e-\u001f\ufffe\uffff]/g;
const ALONE = /[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g;
const escaped = (text) =>
  String(text)
    .replace(CONTROL, "\ufffd")
    .replace(ALONE, "\ufffd")
    .replace(/[&<>"']/g, (mark) => `&#${mark.charCodeAt(0)};`);
const listed = (attributes) =>
  Object.entries(attributes)
    .map(([name, value]) => `${name}="${escaped(value)}"`)
    .join(" ");

const place = (x, y, w, h) => ({ x: tidy(x), y: tidy(y), width: tidy(w), height: tidy(h) });

/** Whole cells of a canvas, many pixels each: most programs smooth what they enlarge, whatever they are told. */
function enlarged(whole, sx, sy, sw, sh, x, y, w, h) {
  const [left, top] = [Math.floor(sx), Math.floor(sy)];
  const [cols, rows] = [Math.ceil(sx + sw) - left, Math.ceil(sy + sh) - top];
  const by = Math.max(1, Math.min(Math.ceil((2 * w) / sw), Math.floor(LARGE / Math.max(cols, rows))));
  const canvas = Object.assign(document.createElement("canvas"), { width: cols * by, height: rows * by });
  const context = canvas.getContext("2d");
  context.imageSmoothingEnabled = false;
  context.drawImage(whole, left, top, cols, rows, 0, 0, cols * by, rows * by);
  return [canvas, (sx - left) * by, (sy - top) * by, sw * by, sh * by, x, y, w, h];
}

export class SvgContext {
  constructor(width, height) {
    Object.assign(this, { width, height, parts: [], path: [], open: 0, stack: [], clips: 0 });
    Object.assign(this, { fillStyle: "#000", strokeStyle: "#000", lineWidth: 1, font: "10px sans-serif" });
    Object.assign(this, { textAlign: "left", textBaseline: "alphabetic", imageSmoothingEnabled: true });
    this.dash = [];
  }

  save() {
    const { fillStyle, strokeStyle, lineWidth, font, textAlign, textBaseline, dash } = this;
    const kept = { fillStyle, strokeStyle, lineWidth, font, textAlign, textBaseline, dash };
    this.stack.push({ kept, open: this.open });
    this.open = 0;
  }

  restore() {
    this.parts.push("</g>".repeat(this.open));
    const { kept, open } = this.stack.pop();
    Object.assign(this, kept, { open });
  }

  group(attributes) {
    this.parts.push(`<g ${attributes}>`);
    this.open++;
  }

  translate(x, y) {
    this.group(`transform="translate(${tidy(x)} ${tidy(y)})"`);
  }

  rotate(angle) {
    this.group(`transform="rotate(${tidy((angle * 180) / Math.PI)})"`);
  }

  scale(x, y) {
    this.group(`transform="scale(${x} ${y})"`);
  }

  setLineDash(dash) {
    this.dash = dash;
  }

  beginPath() {
    this.path = [];
  }

  moveTo(x, y) {
    this.path.push(`M${tidy(x)} ${tidy(y)}`);
  }

  lineTo(x, y) {
    this.path.push(`L${tidy(x)} ${tidy(y)}`);
  }

  rect(x, y, w, h) {
    this.path.push(`M${tidy(x)} ${tidy(y)}h${tidy(w)}v${tidy(h)}h${tidy(-w)}z`);
  }

  clip() {
    const name = `clip${++this.clips}`;
    this.parts.push(`<clipPath id="${name}"><path d="${this.path.join("")}"/></clipPath>`);
    this.group(`clip-path="url(#${name})"`);
  }

  /** How lines are drawn now. */
  get line() {
    const dash = this.dash.length ? { "stroke-dasharray": this.dash.join(" ") } : {};
    return { fill: "none", stroke: this.strokeStyle, "stroke-width": this.lineWidth, ...dash };
  }

  stroke() {
    this.parts.push(`<path ${listed({ d: this.path.join(""), ...this.line })}/>`);
  }

  fillRect(x, y, w, h) {
    this.parts.push(`<rect ${listed({ ...place(x, y, w, h), fill: this.fillStyle })}/>`);
  }

  strokeRect(x, y, w, h) {
    this.parts.push(`<rect ${listed({ ...place(x, y, w, h), ...this.line })}/>`);
  }

  fillText(text, x, y) {
    const [, size, family] = FAMILY.exec(this.font) ?? [null, "10", "sans-serif"];
    const attributes = {
      x: tidy(x),
      y: tidy(y + size * DOWN[this.textBaseline]),
      fill: this.fillStyle,
      "font-size": size,
      "font-family": family,
      "text-anchor": { center: "middle", right: "end" }[this.textAlign] ?? "start",
      "unicode-bidi": "isolate",
      "xml:space": "preserve",
    };
    const plain = text.replace(/[\u2066-\u2069]/g, ""); // the isolates that a canvas needs
    this.parts.push(`<text ${listed(attributes)}>${escaped(plain)}</text>`);
  }

  /** Part of a canvas, as an image in a frame of its own. */
  drawImage(whole, ...where) {
    const [canvas, sx, sy, sw, sh, x, y, w, h] = this.imageSmoothingEnabled
      ? [whole, ...where]
      : enlarged(whole, ...where);
    const part = { viewBox: [sx, sy, sw, sh].map(tidy).join(" "), preserveAspectRatio: "none" };
    const frame = { ...place(x, y, w, h), ...part };
    const image = {
      width: canvas.width,
      height: canvas.height,
      href: canvas.toDataURL("image/png"),
      style: `image-rendering:${this.imageSmoothingEnabled ? "auto" : "pixelated"}`,
    };
    this.parts.push(`<svg ${listed(frame)}><image ${listed(image)}/></svg>`);
  }

  /** The whole picture as text. */
  toString() {
    const { width, height } = this;
    const size = { xmlns: "http://www.w3.org/2000/svg", width, height, viewBox: `0 0 ${width} ${height}` };
    return `<svg ${listed(size)}>\n${this.parts.join("\n")}\n</svg>\n`;
  }
}
