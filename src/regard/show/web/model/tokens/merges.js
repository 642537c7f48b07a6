// @ts-check
// Byte-pair encoding of one word: the pair of neighbours that was learned first is merged first.

/** A heap of numbers, the smallest on top. */
class Heap {
  constructor() {
    /** @type {number[]} */
    this.items = [];
  }

  /** @param {number} item */
  push(item) {
    const { items } = this;
    let at = items.length;
    items.push(item);
    while (at > 0) {
      const above = (at - 1) >> 1;
      if (items[above] <= item) break;
      items[at] = items[above];
      at = above;
    }
    items[at] = item;
  }

  /** @returns {number | undefined} */
  pop() {
    const { items } = this;
    const top = items[0];
    const item = items.pop();
    if (item === undefined || !items.length) return top;
    let at = 0;
    for (;;) {
      let below = 2 * at + 1;
      if (below >= items.length) break;
      if (below + 1 < items.length && items[below + 1] < items[below]) below++;
      if (items[below] >= item) break;
      items[at] = items[below];
      at = below;
    }
    items[at] = item;
    return top;
  }
}

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
   * The ids of a word, from those of its smallest symbols.
   * @param {number[]} symbols
   */
  merge(symbols) {
    const size = symbols.length;
    const ids = [...symbols];
    const next = Int32Array.from({ length: size }, (_, n) => (n + 1 < size ? n + 1 : -1));
    const previous = Int32Array.from({ length: size }, (_, n) => n - 1);
    const waiting = new Heap(); // of ranks and places: rank · size + place
    const offer = (/** @type {number} */ place) => {
      if (place < 0 || next[place] < 0) return;
      const rank = this.ranks.get(ids[place] * this.vocabulary + ids[next[place]]);
      if (rank !== undefined) waiting.push(rank * size + place);
    };
    for (let place = 0; place < size; place++) offer(place);
    for (let top = waiting.pop(); top !== undefined; top = waiting.pop()) {
      const [rank, place] = [Math.floor(top / size), top % size];
      const right = next[place];
      // Other merges may have changed the pair since.
      if (ids[place] < 0 || right < 0) continue;
      const now = this.ranks.get(ids[place] * this.vocabulary + ids[right]);
      if (now === undefined || this.list[3 * now + 2] !== this.list[3 * rank + 2]) continue;
      ids[place] = this.list[3 * now + 2];
      ids[right] = -1;
      next[place] = next[right];
      if (next[place] >= 0) previous[next[place]] = place;
      offer(previous[place]);
      offer(place);
    }
    return ids.filter((id) => id >= 0);
  }
}
