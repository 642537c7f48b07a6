// @ts-check
// The constants and words that the page shares with Python, as `meta` brings them, and the tiles of a map, whose size is
// one of them. They are set once, when the source is opened, before anything is computed or drawn.

/** @type {SharedSettings} */
export const settings = /** @type {any} */ ({});

/** @param {SharedSettings} meta */
export function applySettings({ tile, thumb, scores, invisible, measures }) {
  Object.assign(settings, { tile, thumb, scores, invisible, measures });
}

/**
 * The coarsest level of a map of T queries and S keys: one tile holds the whole map.
 * @param {number} T
 * @param {number} S
 */
export function topLevel(T, S) {
  return Math.max(0, Math.ceil(Math.log2(Math.max(T, S, 1) / settings.tile)));
}

/**
 * The level at which the colours of a map are fitted, whatever part of it is seen: the whole map has at most two tiles
 * to a side.
 * @param {number} T
 * @param {number} S
 */
export function overviewLevel(T, S) {
  return Math.max(0, topLevel(T, S) - 1);
}

/**
 * How many cells of level z tile number `index` has along an axis of `size` tokens; a cell is 2^z tokens.
 * @param {number} size
 * @param {number} z
 * @param {number} index
 */
export function cellsAlong(size, z, index) {
  return Math.min(settings.tile, Math.ceil(size / 2 ** z) - index * settings.tile);
}

/** What the state says of a map that is seen as a whole. */
export const WHOLE = { x: -1, y: -1, zoom: 0 };
