// @ts-check
// Characters that several tokens share, as `characters.py` writes them: 世¹⁄₃ for the first of three pieces.

import { markOf } from "../../data/split_characters.js";

const MOST_BYTES = 4; // of a character in UTF-8

/**
 * The text of each token of a sequence, of which those that hold parts of characters are bytes.
 * @param {(string | Uint8Array)[]} tokens
 */
export function writePieces(tokens) {
  /** @type {string[]} */
  const texts = [];
  /** @type {Uint8Array[]} */
  let run = [];
  const write = () => {
    texts.push(...writeRun(run));
    run = [];
  };
  for (const token of tokens) {
    if (typeof token !== "string") run.push(token);
    else {
      write();
      texts.push(token);
    }
  }
  write();
  return texts;
}

/**
 * The texts of tokens in a row that are bytes.
 * @param {Uint8Array[]} run
 */
function writeRun(run) {
  const owner = run.flatMap((piece, number) => Array.from(piece, () => number)); // of each byte
  const bytes = Uint8Array.from(run.flatMap((piece) => [...piece]));
  const texts = run.map(() => "");
  for (let start = 0; start < bytes.length;) {
    const found = firstCharacter(bytes.subarray(start, start + MOST_BYTES));
    if (!found) {
      texts[owner[start]] += `<0x${bytes[start].toString(16).toUpperCase().padStart(2, "0")}>`;
      start++;
      continue;
    }
    const owners = [...new Set(owner.slice(start, start + found.size))];
    owners.forEach((token, n) => {
      const mark = owners.length > 1 ? markOf(n + 1, owners.length) : "";
      texts[token] += found.character + mark;
    });
    start += found.size;
  }
  return texts;
}

/**
 * The character that bytes begin with and its size, or null if they begin with none.
 * @param {Uint8Array} bytes
 */
function firstCharacter(bytes) {
  for (let size = 1; size <= bytes.length; size++) {
    try {
      const strict = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
      return { character: strict.decode(bytes.subarray(0, size)), size };
    } catch {
      continue;
    }
  }
  return null;
}
