// @ts-check
// A picture as a PDF file of one page: shapes are vectors, and text is text.

import { hexBytes, hexText, PdfFile } from "./pdf_file.js";
import { PdfFonts } from "./pdf_text.js";
import { enlarged } from "./pixels.js";

const POINTS = 0.75; // of a pixel

/** @param {number} value */
const tidy = (value) => String(Math.round(value * 1000) / 1000);
/** @param {number[]} values */
const row = (values) => values.map(tidy).join(" ");

/**
 * @param {Picture} picture
 * @param {DrawGlyph} drawGlyph
 * @returns {Promise<Uint8Array<ArrayBuffer>>}
 */
export async function writePdf({ title, width, height, commands }, drawGlyph) {
  const file = new PdfFile();
  const fonts = new PdfFonts(drawGlyph);
  const page = new PageContent(fonts);
  page.write(`${POINTS} 0 0 ${-POINTS} 0 ${tidy(height * POINTS)} cm`);
  for (const command of commands) page.draw(command);
  const content = await file.addStream("", new TextEncoder().encode(page.lines.join("\n")));
  /**
   * @param {PixelImage} image
   * @param {boolean} smooth
   */
  const addImage = (image, smooth) => writeImage(file, image, smooth);
  const images = [];
  for (const [n, { image, smooth, wide }] of page.images.entries())
    images.push(`/X${n} ${await addImage(smooth ? image : enlarged(image, wide), smooth)} 0 R`);
  const fontEntries = await fonts.write(file, addImage);
  const states = [...page.alphas].map(
    ([alpha, name]) => `/${name} << /ca ${tidy(alpha)} /CA ${tidy(alpha)} >>`,
  );
  const resources = `<< /Font << ${fontEntries} >> /XObject << ${images.join(" ")} >> /ExtGState << ${states.join(" ")} >> >>`;
  const pages = file.reserve();
  const box = `[0 0 ${tidy(width * POINTS)} ${tidy(height * POINTS)}]`;
  const sheet = file.add(
    `<< /Type /Page /Parent ${pages} 0 R /MediaBox ${box} /Resources ${resources} /Contents ${content} 0 R >>`,
  );
  file.add(`<< /Type /Pages /Kids [${sheet} 0 R] /Count 1 >>`, pages);
  const root = file.add(`<< /Type /Catalog /Pages ${pages} 0 R >>`);
  return file.finish(root, file.add(`<< /Title ${hexText(title)} /Producer ${hexText("Regard")} >>`));
}

/** The operators that draw a page. */
class PageContent {
  /** @param {PdfFonts} fonts */
  constructor(fonts) {
    this.fonts = fonts;
    /** @type {string[]} */
    this.lines = [];
    /** @type {{ image: PixelImage, smooth: boolean, wide: number }[]} */
    this.images = [];
    /** @type {Map<number, string>} */
    this.alphas = new Map(); // with the names of their graphics states
    /** @type {Record<string, string>} */
    this.now = {}; // the operators that are in force
  }

  /** @param {string} line */
  write(line) {
    this.lines.push(line);
  }

  /**
   * Writes an operator that sets something, unless it is in force.
   * @param {string} name
   * @param {string} line
   */
  set(name, line) {
    if (this.now[name] === line) return;
    this.now[name] = line;
    this.write(line);
  }

  /** @param {DrawingCommand} command */
  draw(command) {
    switch (command.kind) {
      case "clip":
        this.write(`q\n${written(command.path)} W n`);
        break;
      case "end":
        this.write("Q");
        this.now = {}; // as it was before, which nobody remembers
        break;
      case "fill":
        this.paint("rg", command.colour);
        this.write(`${written(command.path)} f`);
        break;
      case "stroke":
        this.paint("RG", command.colour);
        this.set("width", `${tidy(command.width)} w`);
        this.set("dash", `[${row(command.dash)}] 0 d`);
        this.write(`${written(command.path)} S`);
        break;
      case "text":
        this.text(command);
        break;
      case "image":
        this.image(command);
    }
  }

  /**
   * @param {"rg" | "RG"} operator
   * @param {Colour} colour
   */
  paint(operator, [red, green, blue, alpha]) {
    const name = this.alphas.get(alpha) ?? `A${this.alphas.size}`;
    this.alphas.set(alpha, name);
    this.set("alpha", `/${name} gs`);
    this.set(operator, `${row([red / 255, green / 255, blue / 255])} ${operator}`);
  }

  /** @param {TextCommand} command */
  text(command) {
    const { font, matrix, width } = command;
    const runs = this.fonts.runs(command);
    const own = (runs.reduce((sum, run) => sum + run.width, 0) * font.size) / 1000;
    if (!own) return;
    const [a, b, c, d, e, f] = matrix;
    this.paint("rg", command.colour);
    this.write("BT");
    // As wide as it was measured, so that what was laid out for another font still fits.
    this.set("stretch", `${tidy((100 * width) / own)} Tz`);
    this.write(`${row([a, b, -c, -d, e, f])} Tm`);
    for (const { font: name, bytes } of runs)
      this.write(`/${name} ${tidy(font.size)} Tf ${hexBytes(bytes)} Tj`);
    this.write("ET");
  }

  /** @param {ImageCommand} command */
  image({ image, matrix, smooth }) {
    const [a, b, c, d, e, f] = matrix;
    this.images.push({ image, smooth, wide: Math.hypot(a, b) });
    this.set("alpha", `/${this.opaque()} gs`);
    this.write(`q ${row([a, b, -c, -d, e + c, f + d])} cm /X${this.images.length - 1} Do Q`);
  }

  /** The name of the graphics state that covers what is below. */
  opaque() {
    const name = this.alphas.get(1) ?? `A${this.alphas.size}`;
    this.alphas.set(1, name);
    return name;
  }
}

/** @param {Segment[]} path */
function written(path) {
  const operators = { M: "m", L: "l", C: "c", Z: "h" };
  return path.map(([letter, ...places]) => `${row(places)} ${operators[letter]}`.trim()).join(" ");
}

/**
 * Writes an image, with what it leaves uncovered as its mask; returns its number.
 * @param {PdfFile} file
 * @param {PixelImage} image
 * @param {boolean} smooth
 */
async function writeImage(file, { width, height, data }, smooth) {
  const count = width * height;
  const [colours, cover] = [new Uint8Array(3 * count), new Uint8Array(count)];
  for (let n = 0; n < count; n++) {
    colours.set(data.subarray(4 * n, 4 * n + 3), 3 * n);
    cover[n] = data[4 * n + 3];
  }
  const size = `/Type /XObject /Subtype /Image /Width ${width} /Height ${height} /BitsPerComponent 8`;
  const drawn = smooth ? " /Interpolate true" : "";
  const mask = cover.every((byte) => byte === 255)
    ? ""
    : ` /SMask ${await file.addStream(`${size}${drawn} /ColorSpace /DeviceGray`, cover)} 0 R`;
  return file.addStream(`${size}${drawn} /ColorSpace /DeviceRGB${mask}`, colours);
}
