// @ts-check
// A BPE of bytes or of characters: text to token ids, and ids to the texts of tokens.
// It gives the same ids as the package `tokenizers`, for every text that it can be given.

import { LRU } from "../../data/lru.js";
import { writePieces } from "./character_pieces.js";
import { Merges } from "./merges.js";
import { wordPattern } from "./words.js";

const KEPT_WORDS = 4096; // with their ids

export class Tokenizer {
  /** @param {TokenizerData} data */
  constructor(data) {
    this.data = data;
    this.merges = new Merges(data.merges, data.pieces.length);
    this.word = data.bytes ? wordPattern(data) : /.+/gs; // a tokenizer of characters has no words
    /** @type {Map<string, number>} */
    this.ids = new Map(data.pieces.map((piece, id) => [piece, id]));
    this.special = new Map(data.special.map(({ id, text }) => [id, text]));
    this.markIds = new Map(data.special.map(({ id, text }) => [text, id]));
    this.marks = anyOf([...this.markIds.keys()]);
    this.signs = byteSigns();
    this.bytes = new Map(this.signs.map((sign, byte) => [sign, byte]));
    /** @type {LRU<number[]>} */
    this.words = new LRU(KEPT_WORDS);
  }

  /**
   * The ids of a text, with the tokens that stand before every text.
   * @param {string} text
   */
  encode(text) {
    const ids = [...this.data.prefix];
    for (const part of this.parts(text.toWellFormed())) {
      if (typeof part === "number") ids.push(part);
      else for (const [word] of part.matchAll(this.word)) this.push(ids, word);
    }
    return ids;
  }

  /**
   * A text cut at its special tokens, which are given as ids.
   * @param {string} text
   */
  parts(text) {
    return text
      .split(this.marks)
      .filter(Boolean)
      .map((part) => this.markIds.get(part) ?? part);
  }

  /**
   * Appends the ids of a word.
   * @param {number[]} ids
   * @param {string} word
   */
  push(ids, word) {
    const known = this.words.get(word);
    const found = known ?? this.merges.merge(this.symbols(word));
    if (!known && word.length < 100) this.words.set(word, found);
    for (const id of found) ids.push(id);
  }

  /**
   * The ids of a word's bytes or characters; characters that have none are left out.
   * @param {string} word
   */
  symbols(word) {
    const pieces = this.data.bytes
      ? Array.from(new TextEncoder().encode(word), (byte) => this.signs[byte])
      : [...word];
    return pieces.map((piece) => this.ids.get(piece) ?? -1).filter((id) => id >= 0);
  }

  /**
   * The texts of tokens that follow one another; pieces of one character are that character with a mark.
   * @param {ArrayLike<number>} ids
   */
  texts(ids) {
    return writePieces(Array.from(ids, (id) => this.decode(id)));
  }

  /**
   * The text of one token by itself.
   * @param {number} id
   */
  text(id) {
    return this.texts([id])[0];
  }

  /**
   * The text of a token, or its bytes if they may be parts of characters.
   * @param {number} id
   * @returns {string | Uint8Array}
   */
  decode(id) {
    const special = this.special.get(id);
    if (special !== undefined) return special;
    const piece = this.data.pieces[id];
    if (!this.data.bytes) return piece;
    const bytes = Uint8Array.from(piece, (sign) => this.bytes.get(sign) ?? 0x3f);
    const text = new TextDecoder("utf-8", { ignoreBOM: true }).decode(bytes);
    return text.includes("\ufffd") ? bytes : text;
  }
}

/**
 * A pattern for texts, the longest first where several begin at one place; in brackets, so that `split` keeps them.
 * @param {string[]} texts
 */
function anyOf(texts) {
  const longest = texts.filter(Boolean).sort((a, b) => b.length - a.length);
  const escaped = longest.map((text) => text.replace(/[\\^$.*+?()[\]{}|]/g, "\\$&"));
  return new RegExp(escaped.length ? `(${escaped.join("|")})` : "(?!)");
}

/** The printable character that stands for each byte in the pieces of a byte-level tokenizer, as in GPT-2. */
function byteSigns() {
  const printable = (/** @type {number} */ byte) =>
    (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte !== 0xad);
  let others = 0;
  return Array.from({ length: 256 }, (_, byte) =>
    String.fromCharCode(printable(byte) ? byte : 256 + others++),
  );
}
