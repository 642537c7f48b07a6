// @ts-check
// Characters that several tokens share, as a byte-level tokenizer cuts them: 世¹⁄₃ is the first of three pieces.
// `characters.py` writes them so.

const NUMBERS = "¹²³⁴";
const COUNTS = "₁₂₃₄";
const MARK = `(.)([${NUMBERS}])⁄([${COUNTS}])`;
const FIRST = new RegExp(`^${MARK}`, "su");
const LAST = new RegExp(`${MARK}$`, "su");
const MARK_LENGTH = 3;

/** @param {RegExpExecArray | null} match */
function pieceOf(match) {
  if (!match) return null;
  const [written, character, number, count] = match;
  return { written, character, piece: NUMBERS.indexOf(number) + 1, pieces: COUNTS.indexOf(count) + 1 };
}

/**
 * The mark of a piece of a character: which one it is, from 1, and of how many.
 * @param {number} piece
 * @param {number} pieces
 */
export function markOf(piece, pieces) {
  return `${NUMBERS[piece - 1]}⁄${COUNTS[pieces - 1]}`;
}

/**
 * The first piece of a character at the end of a token, if the others follow it.
 * @param {string} text the token, or its end
 * @param {string[]} tokens
 * @param {number} at the token's number
 */
function openedBy(text, tokens, at) {
  const first = pieceOf(LAST.exec(text));
  if (!first || first.piece !== 1 || first.pieces < 2) return null;
  for (let piece = 2; piece <= first.pieces; piece++) {
    const expected = first.character + markOf(piece, first.pieces);
    const next = tokens[at + piece - 1] ?? "";
    if (piece < first.pieces ? next !== expected : !next.startsWith(expected)) return null;
  }
  return first;
}

/**
 * The tokens without the marks of pieces; a fraction that the text itself has is none.
 * @param {string[]} tokens
 * @returns {SplitToken[]}
 */
export function splitTokens(tokens) {
  /** @type {{ character: string, piece: number, pieces: number, first: number } | null} */
  let open = null; // the piece that the token before ends with
  return tokens.map((token, at) => {
    let rest = token;
    let joins = false;
    const next = open && pieceOf(FIRST.exec(token));
    if (open && next && next.character === open.character && next.piece === open.piece + 1) {
      rest = token.slice(next.written.length);
      joins = true;
      if (!rest) {
        const { piece, pieces } = next;
        const { first } = open;
        open = piece < pieces ? { ...next, first } : null;
        return { text: "", first, piece, pieces, joins };
      }
    }
    const opened = openedBy(rest, tokens, at);
    open = opened && { ...opened, first: at };
    const text = opened ? rest.slice(0, -MARK_LENGTH) : rest;
    return { text, first: at, piece: opened ? 1 : 0, pieces: opened?.pieces ?? 0, joins };
  });
}

/**
 * The text that tokens write together, as code points, and the place of each token in it: the pieces of one character
 * have the same place.
 * @param {string[]} tokens
 */
export function locate(tokens) {
  /** @type {string[]} */
  const text = [];
  const places = splitTokens(tokens).map(({ text: own, joins }) => {
    const start = text.length - (joins ? 1 : 0);
    text.push(...own);
    return /** @type {[number, number]} */ ([start, text.length]);
  });
  return { text, places };
}

/**
 * The text that tokens write together; a character in pieces counts once.
 * @param {string[]} tokens
 */
export function joinTokens(tokens) {
  return splitTokens(tokens)
    .map(({ text }) => text)
    .join("");
}

/**
 * The tokens of a text that is still being written, once one more has come: bytes become pieces of a character as soon
 * as its last piece is there.
 * @param {string[]} tokens
 * @param {string} token
 */
export function withToken(tokens, token) {
  const last = pieceOf(FIRST.exec(token));
  if (!last || last.piece < 2 || last.piece !== last.pieces) return [...tokens, token];
  const before = Array.from(
    { length: last.pieces - 1 },
    (_, n) => last.character + markOf(n + 1, last.pieces),
  );
  return [...tokens.slice(0, 1 - last.pieces), ...before, token];
}
