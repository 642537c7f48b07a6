// A canvas that writes SVG: it understands as much of a canvas's language as our drawings speak.

const FAMILY = /^(\d+(?:\.\d+)?)px (.*)$/;

const tidy = (value) => String(Math.round(value * 100) / 100);
const escaped = (text) =>
  String(text)
    .replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f\ufffe\uffff]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g, "\ufffd")
    .replace(/[&<>"']/g, (mark) => `&#${mark.charCodeAt(0)};`);

export class SvgContext {
  constructor(width, height) {
    Object.assign(this, { width, height, parts: [], path: [], open: 0, stack: [], clips: 0 });
    Object.assign(this, { fillStyle: "#000", strokeStyle: "#000", lineWidth: 1, font: "10px sans-serif" });
    Object.assign(this, { textAlign: "left", textBaseline: "alphabetic", imageSmoothingEnabled: true, dash: [] });
  }

  save() {
    const { fillStyle, strokeStyle, lineWidth, font, textAlign, textBaseline, dash } = this;
    this.stack.push({ kept: { fillStyle, strokeStyle, lineWidth, font, textAlign, textBaseline, dash }, open: this.open });
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

  stroke() {
    const dash = this.dash.length ? ` stroke-dasharray="${this.dash.join(" ")}"` : "";
    const style = `fill="none" stroke="${escaped(this.strokeStyle)}" stroke-width="${this.lineWidth}"${dash}`;
    this.parts.push(`<path d="${this.path.join("")}" ${style}/>`);
  }

  box(x, y, w, h, style) {
    this.parts.push(`<rect x="${tidy(x)}" y="${tidy(y)}" width="${tidy(w)}" height="${tidy(h)}" ${style}/>`);
  }

  fillRect(x, y, w, h) {
    this.box(x, y, w, h, `fill="${escaped(this.fillStyle)}"`);
  }

  strokeRect(x, y, w, h) {
    const dash = this.dash.length ? ` stroke-dasharray="${this.dash.join(" ")}"` : "";
    this.box(x, y, w, h, `fill="none" stroke="${escaped(this.strokeStyle)}" stroke-width="${this.lineWidth}"${dash}`);
  }

  fillText(text, x, y) {
    const [, size, family] = FAMILY.exec(this.font.replace(/^\d{3} /, "")) ?? [null, "10", "sans-serif"];
    const anchor = { center: "middle", right: "end" }[this.textAlign] ?? "start";
    const baseline = { middle: "central", top: "hanging" }[this.textBaseline] ?? "alphabetic";
    const plain = text.replace(/[\u2066-\u2069]/g, "");
    const style = `font-size="${size}" font-family="${escaped(family)}" fill="${escaped(this.fillStyle)}" unicode-bidi="isolate"`;
    this.parts.push(
      `<text x="${tidy(x)}" y="${tidy(y)}" text-anchor="${anchor}" dominant-baseline="${baseline}" ${style} xml:space="preserve">${escaped(plain)}</text>`,
    );
  }

  /** Part of a canvas, as an image in a frame of its own. */
  drawImage(canvas, sx, sy, sw, sh, x, y, w, h) {
    const rendering = this.imageSmoothingEnabled ? "auto" : "pixelated";
    this.parts.push(
      `<svg x="${tidy(x)}" y="${tidy(y)}" width="${tidy(w)}" height="${tidy(h)}" viewBox="${tidy(sx)} ${tidy(sy)} ${tidy(sw)} ${tidy(sh)}" preserveAspectRatio="none">`
      + `<image width="${canvas.width}" height="${canvas.height}" style="image-rendering:${rendering}" href="${canvas.toDataURL("image/png")}"/></svg>`,
    );
  }

  /** The whole picture as text. */
  toString() {
    const { width, height } = this;
    return `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}">\n${this.parts.join("\n")}\n</svg>\n`;
  }
}
