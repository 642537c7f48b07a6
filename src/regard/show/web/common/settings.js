// @ts-check
// The constants and words that the page shares with Python, as `meta` brings them. They are set once, when the
// source is opened, before anything is computed or drawn.

/** @type {SharedSettings} */
export const settings = { tile: 0, thumb: 0, scores: [], invisible: {} };

/** @param {SharedSettings} meta */
export function applySettings({ tile, thumb, scores, invisible }) {
  Object.assign(settings, { tile, thumb, scores, invisible });
}
