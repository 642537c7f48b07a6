// @ts-check
// What was made once is kept: all of it, or in a cache of bounded size that drops the entry which was used least recently.

/**
 * @template V
 */
export class LRU {
  /** @param {number} size the most entries that it holds */
  constructor(size) {
    this.size = size;
    /** @type {Map<string, V>} */
    this.entries = new Map(); // least recently used first
  }

  /** @param {string} key */
  get(key) {
    const value = this.entries.get(key);
    if (value !== undefined) this.set(key, value);
    return value;
  }

  /**
   * @param {string} key
   * @param {V} value
   */
  set(key, value) {
    this.entries.delete(key);
    this.entries.set(key, value);
    const [oldest] = this.entries.keys();
    if (this.entries.size > this.size) this.entries.delete(oldest);
  }
}

/**
 * What a cache has under a key; it is made, and kept there, if there is nothing yet.
 * @template K, V
 * @param {{ get(key: K): V | undefined, set(key: K, value: V): unknown }} cache
 * @param {K} key
 * @param {() => V} make
 */
export function once(cache, key, make) {
  const made = cache.get(key) ?? make();
  cache.set(key, made);
  return made;
}
