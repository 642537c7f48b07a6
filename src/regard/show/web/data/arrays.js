// @ts-check
// Small helpers for lists and numbers.

/**
 * The last entry of a list that is not empty.
 * @template T
 * @param {ArrayLike<T>} list
 */
export function last(list) {
  return list[list.length - 1];
}

/**
 * Whether a value is there: neither null, which Python's None becomes, nor left out.
 * @template T
 * @param {T | null | undefined} value
 * @returns {value is T}
 */
export function known(value) {
  return value !== null && value !== undefined;
}

/**
 * The number nearest to a value from `low` to `high`.
 * @param {number} value
 * @param {number} low
 * @param {number} high
 */
export function clamp(value, low, high) {
  return Math.min(high, Math.max(low, value));
}
