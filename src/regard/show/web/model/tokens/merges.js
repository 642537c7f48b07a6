// @ts-check
// Byte-pair encoding of one word: the pair of neighbours that was learned first is merged first.

/** The merges of a tokenizer. */
export class Merges {
  /**
   * @param {number[]} list of pairs of ids, each followed by the id of both together, in the order of learning
   * @param {number} vocabulary the number of ids
   */
  constructor(list, vocabulary) {
    this.list = list;
    this.vocabulary = vocabulary;
    /** @type {Map<number, number>} */
    this.ranks = new Map(); // by the pair
    for (let n = 0; n < list.length; n += 3) this.ranks.set(list[n] * vocabulary + list[n + 1], n / 3);
  }

  /**
   * The ids of a word, from those of its smallest symbols: all pairs of the lowest rank are merged at a time, from left
   * to right. What they make has a higher rank, since it was learned later.
   * @param {number[]} symbols
   */
  merge(symbols) {
    let ids = symbols;
    for (;;) {
      const ranks = ids.map((id, n) => this.ranks.get(id * this.vocabulary + ids[n + 1]) ?? Infinity);
      const lowest = ranks.reduce((least, rank) => Math.min(least, rank), Infinity);
      if (lowest === Infinity) return ids;
      /** @type {number[]} */
      const merged = [];
      for (let n = 0; n < ids.length; n++) {
        const isPair = ranks[n] === lowest;
        merged.push(isPair ? this.list[3 * lowest + 2] : ids[n]);
        if (isPair) n++; // the second of the pair
      }
      ids = merged;
    }
  }
}
