// @ts-check
// Cuts a text into the words that a byte-level tokenizer encodes one by one, as GPT-2's pattern does:
// 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
// What a letter, a number and a space is, is told by the tokenizer: browsers differ in their version of Unicode.

const [LETTER, NUMBER, SPACE] = [1, 2, 3]; // all else is 0
const CONTRACTION = /'(?:s|t|re|ve|m|ll|d)/y;

/** The classes of all code points. */
export class CharacterClasses {
  /** @param {Pick<TokenizerData, "letters" | "numbers" | "spaces">} ranges of first and last code points */
  constructor({ letters, numbers, spaces }) {
    this.classes = new Uint8Array(0x110000);
    const classes = /** @type {const} */ ([
      [letters, LETTER],
      [numbers, NUMBER],
      [spaces, SPACE],
    ]);
    for (const [ranges, kind] of classes)
      for (let n = 0; n < ranges.length; n += 2) this.classes.fill(kind, ranges[n], ranges[n + 1] + 1);
  }

  /**
   * @param {string} text
   * @param {number} at
   */
  at(text, at) {
    return this.classes[text.codePointAt(at) ?? 0];
  }

  /**
   * Where the run of characters of one class ends that begins at a place.
   * @param {string} text
   * @param {number} at
   */
  runEnd(text, at) {
    const kind = this.at(text, at);
    let end = at;
    while (end < text.length && this.at(text, end) === kind) end += step(text, end);
    return end;
  }

  /** @param {string} text which is well-formed */
  words(text) {
    const words = [];
    for (let at = 0; at < text.length;) {
      const end = this.wordEnd(text, at);
      words.push(text.slice(at, end));
      at = end;
    }
    return words;
  }

  /**
   * Where the word ends that begins at a place.
   * @param {string} text
   * @param {number} at
   */
  wordEnd(text, at) {
    CONTRACTION.lastIndex = at;
    if (CONTRACTION.test(text)) return CONTRACTION.lastIndex;
    if (this.at(text, at) !== SPACE) return this.runEnd(text, at);
    if (text[at] === " " && at + 1 < text.length && this.at(text, at + 1) !== SPACE)
      return this.runEnd(text, at + 1);
    const end = this.runEnd(text, at);
    // The last of several spaces belongs to what follows; all characters of this class are one unit long.
    return end < text.length && end - 1 > at ? end - 1 : end;
  }
}

/**
 * The length of the character at a place: 2 if it is a surrogate pair.
 * @param {string} text
 * @param {number} at
 */
function step(text, at) {
  return (text.codePointAt(at) ?? 0) > 0xffff ? 2 : 1;
}
