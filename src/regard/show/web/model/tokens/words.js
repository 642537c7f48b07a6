// @ts-check
// The words that a byte-level tokenizer encodes one by one. What a letter, a number and a space is, is told by the
// tokenizer: browsers differ in their version of Unicode.

/**
 * GPT-2's pattern of a word: 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
 * @param {Pick<TokenizerData, "letters" | "numbers" | "spaces">} ranges of first and last code points
 */
export function wordPattern({ letters, numbers, spaces }) {
  const [L, N, S] = [letters, numbers, spaces].map(inBrackets);
  return new RegExp(
    `'(?:s|t|re|ve|m|ll|d)| ?[${L}]+| ?[${N}]+| ?[^${S}${L}${N}]+|[${S}]+(?![^${S}])|[${S}]+`,
    "gu",
  );
}

/**
 * Ranges as a pattern has them in brackets.
 * @param {number[]} ranges
 */
function inBrackets(ranges) {
  return ranges.map((code, n) => `${n % 2 ? "-" : ""}\\u{${code.toString(16)}}`).join("");
}
