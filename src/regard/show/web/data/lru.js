// @ts-check
// A cache of bounded size that drops the entry which was used least recently.

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

  /**
   * @param {string} key
   * @returns {V | undefined}
   */
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
