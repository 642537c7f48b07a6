// @ts-check
// Text in a PDF file. Letters that the fonts of every reader have are written in them. All others, such as Chinese,
// Arabic or emoji, become glyphs of a font of the file's own: each is a small picture of what the browser draws there,
// which stands for its characters when it is selected, copied or searched for. So no letter is ever a wrong one.

import { coreFont, coreLetter, signsOf } from "./core_fonts.js";
import { hexBytes, hexText } from "./pdf_file.js";

/** @typedef {{ font: string, bytes: number[], width: number }} TextRun in one font, width in thousandths of a letter */

const MOST_GLYPHS = 255; // of a font
const LONGEST = 250; // UTF-16 units that one glyph stands for: readers take no more
/** Scripts that are written from right to left: their order within a line is the browser's business. */
const RIGHT_TO_LEFT = /[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]/;

/** The fonts of one file. */
export class PdfFonts {
  /** @param {DrawGlyph} drawGlyph */
  constructor(drawGlyph) {
    this.drawGlyph = drawGlyph;
    /** @type {Map<CoreFont, string>} */
    this.core = new Map(); // with their names in the file
    /** @type {{ text: string, picture: GlyphPicture }[]} */
    this.glyphs = [];
    /** @type {Map<string, number>} */
    this.places = new Map(); // of glyphs in their list
  }

  /**
   * A text as runs of one font each.
   * @param {TextCommand} command
   * @returns {TextRun[]}
   */
  runs({ text, font, colour }) {
    /** @type {TextRun[]} */
    const runs = [];
    const latin = coreFont(font);
    let others = "";
    const flush = () => {
      if (others) runs.push(this.glyphRun(others, font, colour));
      others = "";
    };
    for (const letter of RIGHT_TO_LEFT.test(text) ? [text] : graphemes(text)) {
      const known = coreLetter(letter, latin);
      if (!known) {
        if (others.length + letter.length > LONGEST) flush();
        others += letter;
        continue;
      }
      flush();
      const name = this.coreName(known.font);
      const last = runs.at(-1);
      if (last?.font === name) {
        last.bytes.push(known.byte);
        last.width += known.width;
      } else runs.push({ font: name, bytes: [known.byte], width: known.width });
    }
    flush();
    return runs;
  }

  /** @param {CoreFont} font */
  coreName(font) {
    const name = this.core.get(font) ?? `F${this.core.size}`;
    this.core.set(font, name);
    return name;
  }

  /**
   * Letters that no usual font has, as one glyph.
   * @param {string} text
   * @param {PrintFont} face
   * @param {Colour} colour
   * @returns {TextRun}
   */
  glyphRun(text, face, colour) {
    const key = JSON.stringify([text, face.family, face.bold, face.italic, colour]);
    let place = this.places.get(key);
    if (place === undefined) {
      place = this.glyphs.length;
      this.glyphs.push({ text, picture: this.drawGlyph(text, face, colour) });
      this.places.set(key, place);
    }
    const { advance } = this.glyphs[place].picture;
    return {
      font: `G${Math.floor(place / MOST_GLYPHS)}`,
      bytes: [1 + (place % MOST_GLYPHS)],
      width: advance,
    };
  }

  /**
   * Writes the fonts that were used; returns the entries of the page's font resources.
   * @param {import("./pdf_file.js").PdfFile} file
   * @param {(image: PixelImage, smooth: boolean) => Promise<number>} addImage
   */
  async write(file, addImage) {
    const entries = [];
    for (const [font, name] of this.core) {
      const signs = signsOf(font);
      const unicode = signs ? ` /ToUnicode ${await file.addStream("", cmap(signs))} 0 R` : "";
      const encoding = signs ? "" : " /Encoding /WinAnsiEncoding";
      const body = `<< /Type /Font /Subtype /Type1 /BaseFont /${font}${encoding}${unicode} >>`;
      entries.push(`/${name} ${file.add(body)} 0 R`);
    }
    for (let first = 0; first < this.glyphs.length; first += MOST_GLYPHS) {
      const glyphs = this.glyphs.slice(first, first + MOST_GLYPHS);
      entries.push(`/G${first / MOST_GLYPHS} ${await writeGlyphs(file, glyphs, addImage)} 0 R`);
    }
    return entries.join(" ");
  }
}

/**
 * A font whose glyphs are pictures.
 * @param {import("./pdf_file.js").PdfFile} file
 * @param {PdfFonts["glyphs"]} glyphs
 * @param {(image: PixelImage, smooth: boolean) => Promise<number>} addImage
 */
async function writeGlyphs(file, glyphs, addImage) {
  const [procedures, images, widths, names] = [[""], [""], [""], [""]].map(
    () => /** @type {string[]} */ ([]),
  );
  let box = [0, 0, 0, 0];
  for (const [n, { picture }] of glyphs.entries()) {
    const { image, left, bottom, wide, high, advance } = picture;
    images.push(`/I${n} ${await addImage(image, true)} 0 R`);
    const place = [wide, 0, 0, high, left, bottom].map(Math.round).join(" ");
    const drawn = `${Math.round(advance)} 0 d0 q ${place} cm /I${n} Do Q`;
    procedures.push(`/g${n} ${await file.addStream("", new TextEncoder().encode(drawn))} 0 R`);
    widths.push(String(Math.round(advance)));
    names.push(`/g${n}`);
    box = [
      Math.min(box[0], left),
      Math.min(box[1], bottom),
      Math.max(box[2], left + wide),
      Math.max(box[3], bottom + high),
    ];
  }
  const unicode = cmap(glyphs.map(({ text }, n) => [n + 1, text]));
  return file.add(
    `<< /Type /Font /Subtype /Type3 /FontBBox [${box.map(Math.round).join(" ")}] ` +
      `/FontMatrix [0.001 0 0 0.001 0 0] /CharProcs << ${procedures.join(" ")} >> ` +
      `/Resources << /XObject << ${images.join(" ")} >> >> ` +
      `/Encoding << /Type /Encoding /Differences [1 ${names.join(" ")}] >> ` +
      `/FirstChar 1 /LastChar ${glyphs.length} /Widths [${widths.join(" ")}] ` +
      `/ToUnicode ${await file.addStream("", unicode)} 0 R >>`,
  );
}

/**
 * What a font's bytes mean.
 * @param {[number, string][]} meanings
 */
function cmap(meanings) {
  const lines = meanings.map(
    ([byte, text]) => `${hexBytes([byte])} ${hexText(text.slice(0, LONGEST), false)}`,
  );
  const blocks = [];
  for (let n = 0; n < lines.length; n += 100) {
    const part = lines.slice(n, n + 100);
    blocks.push(`${part.length} beginbfchar\n${part.join("\n")}\nendbfchar`);
  }
  return new TextEncoder().encode(
    "/CIDInit /ProcSet findresource begin\n12 dict begin\nbegincmap\n" +
      "/CIDSystemInfo << /Registry (Adobe) /Ordering (UCS) /Supplement 0 >> def\n" +
      "/CMapName /Adobe-Identity-UCS def\n/CMapType 2 def\n" +
      `1 begincodespacerange\n<00> <ff>\nendcodespacerange\n${blocks.join("\n")}\n` +
      "endcmap\nCMapName currentdict /CMap defineresource pop\nend\nend\n",
  );
}

/**
 * What a reader takes for letters: a letter with its marks, an emoji with all its parts.
 * @param {string} text
 */
function graphemes(text) {
  return [...new Intl.Segmenter("en", { granularity: "grapheme" }).segment(text)].map(
    ({ segment }) => segment,
  );
}
