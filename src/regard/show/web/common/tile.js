// @ts-check
// The sizes of the pictures that a source gives: tiles of a large map, and thumbnails.

export const TILE = 256; // cells to a side of a tile
export const THUMB = 64; // pixels to a side of a thumbnail

/**
 * The coarsest level of a map of T queries and S keys: one tile holds the whole map.
 * @param {number} T
 * @param {number} S
 */
export function topLevel(T, S) {
  return Math.max(0, Math.ceil(Math.log2(Math.max(T, S, 1) / TILE)));
}

/**
 * How many cells of level z tile number `index` has along an axis of `size` tokens; a cell is 2^z tokens.
 * @param {number} size
 * @param {number} z
 * @param {number} index
 */
export function cellsAlong(size, z, index) {
  return Math.min(TILE, Math.ceil(size / 2 ** z) - index * TILE);
}
