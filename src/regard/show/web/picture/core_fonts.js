// @ts-check
// Fonts that every reader of PDF files has: what they can write, and how wide their letters are. The widths are those
// of Adobe's "Core 14" metrics, which may be used and distributed freely.

/**
 * The widths of the bytes 32 to 255 in thousandths of a letter, in Windows' Latin encoding.
 * @type {Record<string, number[]>}
 */
const LATIN = {
  Helvetica: numbers(`
    278 278 355 556 556 889 667 191 333 333 389 584 278 333 278 278 556 556 556 556 556 556 556 556 556
    556 278 278 584 584 584 556 1015 667 667 722 722 667 611 778 722 278 500 667 556 833 722 778 667 778
    722 667 611 722 667 944 667 667 611 278 278 278 469 556 333 556 556 500 556 556 278 556 556 222 222
    500 222 833 556 556 556 556 333 500 278 556 500 722 500 500 500 334 260 334 584 0 556 0 222 556 333
    1000 556 556 333 1000 667 333 1000 0 611 0 0 222 222 333 333 350 556 1000 333 1000 500 333 944 0 500
    667 278 333 556 556 556 556 260 556 333 737 370 556 584 333 737 333 400 584 333 333 333 556 537 278
    333 333 365 556 834 834 834 611 667 667 667 667 667 667 1000 722 667 667 667 667 278 278 278 278 722
    722 778 778 778 778 778 584 778 722 722 722 722 667 667 611 556 556 556 556 556 556 889 500 556 556
    556 556 278 278 278 278 556 556 556 556 556 556 556 584 611 556 556 556 556 500 556 500`),
  "Helvetica-Bold": numbers(`
    278 333 474 556 556 889 722 238 333 333 389 584 278 333 278 278 556 556 556 556 556 556 556 556 556
    556 333 333 584 584 584 611 975 722 722 722 722 667 611 778 722 278 556 722 611 833 722 778 667 778
    722 667 611 722 667 944 667 667 611 333 278 333 584 556 333 556 611 556 611 556 333 611 611 278 278
    556 278 889 611 611 611 611 389 556 333 611 556 778 556 556 500 389 280 389 584 0 556 0 278 556 500
    1000 556 556 333 1000 667 333 1000 0 611 0 0 278 278 500 500 350 556 1000 333 1000 556 333 944 0 500
    667 278 333 556 556 556 556 280 556 333 737 370 556 584 333 737 333 400 584 333 333 333 611 556 278
    333 333 365 556 834 834 834 611 722 722 722 722 722 722 1000 722 667 667 667 667 278 278 278 278 722
    722 778 778 778 778 778 584 778 722 722 722 722 667 667 611 556 556 556 556 556 556 889 556 556 556
    556 556 278 278 278 278 611 611 611 611 611 611 611 584 611 611 611 611 611 556 611 556`),
  "Times-Roman": numbers(`
    250 333 408 500 500 833 778 180 333 333 500 564 250 333 250 278 500 500 500 500 500 500 500 500 500
    500 278 278 564 564 564 444 921 722 667 667 722 611 556 722 722 333 389 722 611 889 722 722 556 722
    667 556 611 722 722 944 722 722 611 333 278 333 469 500 333 444 500 444 500 444 333 500 500 278 278
    500 278 778 500 500 500 500 333 389 278 500 500 722 500 500 444 480 200 480 541 0 500 0 333 500 444
    1000 500 500 333 1000 556 333 889 0 611 0 0 333 333 444 444 350 500 1000 333 980 389 333 722 0 444
    722 250 333 500 500 500 500 200 500 333 760 276 500 564 333 760 333 400 564 300 300 333 500 453 250
    333 300 310 500 750 750 750 444 722 722 722 722 722 722 889 667 611 611 611 611 333 333 333 333 722
    722 722 722 722 722 722 564 722 722 722 722 722 722 556 500 444 444 444 444 444 444 667 444 444 444
    444 444 278 278 278 278 500 500 500 500 500 500 500 564 500 500 500 500 500 500 500 500`),
};

/** Where Windows' Latin encoding differs from Unicode: the bytes 128 to 159, \u0000 for those that are not used. */
const ABOVE = "€\u0000‚ƒ„…†‡ˆ‰Š‹Œ\u0000Ž\u0000\u0000‘’“”•–—˜™š›œ\u0000žŸ";

/**
 * Signs of other fonts: their byte there and their width.
 * @type {Record<"Symbol" | "ZapfDingbats", Record<string, [number, number]>>}
 */
const SIGNS = {
  Symbol: signs(
    "Α65,722 Β66,667 Χ67,722 Δ68,612 Ε69,611 Φ70,763 Γ71,603 Η72,722 Ι73,333 Κ75,722 Λ76,686 Μ77,889 Ν78,722 Ο79,722 " +
      "Π80,768 Θ81,741 Ρ82,556 Σ83,592 Τ84,611 Υ85,690 ς86,439 Ω87,768 Ξ88,645 Ψ89,795 Ζ90,611 α97,631 β98,549 " +
      "χ99,549 δ100,494 ε101,439 φ102,521 γ103,411 η104,603 ι105,329 κ107,549 λ108,549 ν110,521 ο111,549 π112,549 " +
      "θ113,521 ρ114,549 σ115,603 τ116,439 υ117,576 ω119,686 ξ120,493 ψ121,686 ζ122,494 −45,549 ≤163,549 ≥179,549 " +
      "≠185,549 ≈187,549 ∞165,713 √214,549 ∑229,713 ∏213,823 ∅198,823 ∈206,713 ∂182,494 ∇209,713 ↔171,1042 ←172,987 " +
      "↑173,603 →174,987 ↓175,603 ↵191,658 ⇒222,987 ′162,247 ⋅215,250",
  ),
  ZapfDingbats: signs("✓51,755 ✗55,761"),
};

/** @param {string} text */
function numbers(text) {
  return text.trim().split(/\s+/).map(Number);
}

/**
 * @param {string} text each sign followed by its byte and its width
 * @returns {Record<string, [number, number]>}
 */
function signs(text) {
  /** @type {[string, [number, number]][]} */
  const entries = text.split(" ").map((entry) => {
    const [byte, width] = entry.slice(1).split(",").map(Number);
    return [entry[0], [byte, width]];
  });
  return Object.fromEntries(entries);
}

/**
 * The font of a face, for Latin letters.
 * @param {PrintFont} face
 * @returns {CoreFont}
 */
export function coreFont({ family, bold, italic }) {
  if (family === "mono") return bold ? "Courier-Bold" : "Courier";
  if (family === "serif") return "Times-Roman";
  return bold ? "Helvetica-Bold" : italic ? "Helvetica-Oblique" : "Helvetica";
}

/**
 * A letter's font, byte and width in thousandths of its size; null if none of these fonts has it.
 * @param {string} letter
 * @param {CoreFont} font for Latin letters
 * @returns {{ font: CoreFont, byte: number, width: number } | null}
 */
export function coreLetter(letter, font) {
  const code = letter.codePointAt(0) ?? 0;
  const above = ABOVE.indexOf(letter);
  const byte = above >= 0 && code > 0 ? 128 + above : code;
  if (letter.length === 1 && (above >= 0 ? code > 0 : isLatin(code)))
    return { font, byte, width: latinWidth(font, byte) };
  for (const name of /** @type {const} */ (["Symbol", "ZapfDingbats"])) {
    if (!Object.hasOwn(SIGNS[name], letter)) continue;
    const [place, width] = SIGNS[name][letter];
    return { font: name, byte: place, width };
  }
  return null;
}

/** @param {number} code */
function isLatin(code) {
  return (code >= 32 && code < 127) || (code >= 160 && code < 256 && code !== 173);
}

/**
 * @param {CoreFont} font
 * @param {number} byte
 */
function latinWidth(font, byte) {
  if (font.startsWith("Courier")) return 600;
  return LATIN[font === "Helvetica-Oblique" ? "Helvetica" : font][byte - 32];
}

/**
 * What the bytes of a font of signs mean, as [byte, sign].
 * @param {CoreFont} font
 * @returns {[number, string][] | null}
 */
export function signsOf(font) {
  if (font !== "Symbol" && font !== "ZapfDingbats") return null;
  return Object.entries(SIGNS[font]).map(([sign, [byte]]) => [byte, sign]);
}
