// @ts-check
// Cuts text into characters, words and sentences, as `spans/segments.py` does. Texts are lists of code points here, so
// that places count as they do in Python. Intl.Segmenter cuts some of them elsewhere, so that words would differ.

const SPACE = /^[\p{White_Space}\x1c-\x1f]$/u;
const [ZERO_WIDTH_SPACE, ZERO_WIDTH_JOINER] = ["\u200b", "\u200d"];
// Thai and Lao, Myanmar, Khmer, kana and bopomofo, the Han blocks, half-width kana.
const WITHOUT_SPACES = [
  [0x0e00, 0x0eff],
  [0x1000, 0x109f],
  [0x1780, 0x17ff],
  [0x3040, 0x312f],
  [0x31f0, 0x31ff],
  [0x3400, 0x4dbf],
  [0x4e00, 0x9fff],
  [0xf900, 0xfaff],
  [0xff66, 0xff9f],
  [0x20000, 0x3ffff],
];
const VOWELS_AFTER = "\u0e33\u0eb3";
const SIGNS_BEFORE = "\u0600\u0601\u0602\u0603\u0604\u0605\u06dd\u070f\u0890\u0891\u08e2";
const [INSIDE_WORDS, INSIDE_NUMBERS] = ["'’·", ".,"];
const CLOSERS = "[\"'”’»)\\]}」』）】]*";
const GAP = "[\\p{White_Space}\\x1c-\\x1f]";
const SENTENCE_END = new RegExp(
  `[.!?…؟۔।॥]+${CLOSERS}(?=${GAP})|[。！？｡]+${CLOSERS}|(?=\\n${GAP}*\\n)|(?=\\u2029)`,
  "gu",
);
const LONGEST_WORD = 8; // characters before a point that may be an abbreviation
const ABBREVIATIONS = new Set(
  "mr mrs ms dr prof st jr sr vs etc fig no vol pp cf al e.g i.e z.b bzw d.h".split(" "),
);

/** @param {string} character */
const codeOf = (character) => character.codePointAt(0) ?? 0;

/** @param {string} text */
export const isSpace = (text) => text.length > 0 && [...text].every((character) => SPACE.test(character));

/**
 * The edges of the characters that a reader takes for one each, from 0 to the text's length.
 * @param {string[]} text code points
 */
export function characters(text) {
  const edges = [0];
  let flags = 0; // regional indicators since the last edge; two are a flag
  for (let i = 1; i < text.length; i++) {
    flags = isRegionalIndicator(text[i - 1]) ? flags + 1 : 0;
    if (continues(text[i - 1], text[i], flags)) continue;
    edges.push(i);
    flags = 0;
  }
  return text.length ? [...edges, text.length] : [0];
}

/**
 * Whether a code point belongs to the character of the one before.
 * @param {string} before
 * @param {string} after
 * @param {number} flags
 */
function continues(before, after, flags) {
  if (before === "\r" && after === "\n") return true;
  const control = /^[\p{Cc}\p{Zl}\p{Zp}]$/u;
  if (control.test(before) || control.test(after)) return false;
  if (/^\p{M}$/u.test(after) || (/^\p{Cf}$/u.test(after) && after !== ZERO_WIDTH_SPACE)) return true;
  if (VOWELS_AFTER.includes(after) || SIGNS_BEFORE.includes(before)) return true;
  if (before === ZERO_WIDTH_JOINER && !SPACE.test(after)) return true;
  if (codeOf(after) >= 0x1f3fb && codeOf(after) <= 0x1f3ff) return true; // a skin tone
  if (isRegionalIndicator(after)) return flags % 2 === 1;
  return isHangul(before) && joinsSyllable(before, after);
}

/** @param {string} character */
function isRegionalIndicator(character) {
  return codeOf(character) >= 0x1f1e6 && codeOf(character) <= 0x1f1ff;
}

/**
 * @param {string} character
 * @param {[number, number][]} ranges
 */
const within = (character, ranges) =>
  ranges.some(([first, last]) => codeOf(character) >= first && codeOf(character) <= last);

/** @param {string} character */
function isHangul(character) {
  return within(character, [
    [0x1100, 0x11ff],
    [0xa960, 0xa97f],
    [0xac00, 0xd7ff],
  ]);
}

/**
 * Whether a letter of Hangul continues a syllable.
 * @param {string} before
 * @param {string} after
 */
function joinsSyllable(before, after) {
  /** @type {[number, number][]} */
  const initial = [
    [0x1100, 0x115f],
    [0xa960, 0xa97f],
  ];
  const later = within(after, [
    [0x1160, 0x11ff],
    [0xd7b0, 0xd7ff],
  ]);
  return later || (within(before, initial) && within(after, [...initial, [0xac00, 0xd7a3]]));
}

/**
 * The edges of the words of a text.
 * @param {string[]} text code points
 */
export function words(text) {
  const edges = characters(text);
  const pieces = edges.slice(0, -1).map((edge, n) => text.slice(edge, edges[n + 1]).join(""));
  const starts = edges.slice(0, -1).filter((_, n) => n === 0 || !isSameWord(pieces, n));
  if (starts.length > 1 && isSpace(text.slice(starts.at(-1)).join(""))) starts.pop();
  return text.length ? [...starts, text.length] : [0];
}

/**
 * Whether a character belongs to the word of the one before it.
 * @param {string[]} pieces
 * @param {number} number
 */
function isSameWord(pieces, number) {
  const [before, piece] = [pieces[number - 1], pieces[number]];
  if (isSpace(before)) return true;
  if (isSpace(piece) || hasNoSpaces(before) || hasNoSpaces(piece)) return false;
  if (isWord(before) && isWord(piece)) return true;
  if (isWord(before) && number + 1 < pieces.length) return joins(before, piece, pieces[number + 1]);
  if (isWord(piece) && number > 1) return joins(pieces[number - 2], before, piece);
  return piece === before && !isWord(piece);
}

/** @param {string} piece */
function isWord(piece) {
  return /^[\p{L}\p{N}\p{M}\p{Pc}]/u.test(piece);
}

/** @param {string} piece */
function hasNoSpaces(piece) {
  return WITHOUT_SPACES.some(([first, last]) => codeOf(piece) >= first && codeOf(piece) <= last);
}

/**
 * Whether a sign between two characters belongs to one word with them.
 * @param {string} before
 * @param {string} sign
 * @param {string} after
 */
function joins(before, sign, after) {
  if (hasNoSpaces(before) || hasNoSpaces(after)) return false;
  if (INSIDE_NUMBERS.includes(sign)) return /^\p{Nd}+$/u.test(before) && /^\p{Nd}+$/u.test(after);
  return INSIDE_WORDS.includes(sign) && /^\p{L}/u.test(before) && /^\p{L}/u.test(after);
}

/**
 * The edges of the sentences of a text.
 * @param {string[]} text code points
 */
export function sentences(text) {
  const edges = characters(text);
  const joined = text.join("");
  const starts = [0];
  for (const match of joined.matchAll(SENTENCE_END)) {
    const first = [...joined.slice(0, match.index)].length;
    const stop = first + [...match[0]].length;
    const end = edges.find((edge) => edge >= stop) ?? text.length;
    const start = starts[starts.length - 1];
    const empty = text.slice(start, end).every((character) => SPACE.test(character));
    if (start < end && !empty && endsSentence(text, first, match[0], stop)) starts.push(end);
  }
  const last = text.slice(starts.at(-1));
  if (starts.length > 1 && last.every((character) => SPACE.test(character))) starts.pop();
  return text.length ? [...starts, text.length] : [0];
}

/**
 * Whether a sentence ends at signs that may end one.
 * @param {string[]} text
 * @param {number} first the place of the signs
 * @param {string} signs
 * @param {number} stop
 */
function endsSentence(text, first, signs, stop) {
  if (!signs || "。！？｡".includes(signs[0])) return true;
  const after = text.slice(stop).find((character) => !SPACE.test(character));
  if (after !== undefined && /^\p{Lowercase}$/u.test(after)) return false;
  const before = text
    .slice(Math.max(0, first - LONGEST_WORD), first)
    .join("")
    .split(/[\p{White_Space}\x1c-\x1f(\[“"']/u);
  const word = before[before.length - 1];
  const isInitial = /^\p{L}$/u.test(word);
  return !(signs === "." && (isInitial || ABBREVIATIONS.has(word.toLowerCase())));
}
