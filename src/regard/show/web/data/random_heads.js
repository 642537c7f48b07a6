// @ts-check
// Heads drawn at random, to compare a cut with: what cutting any heads at all would change.

/**
 * As many heads as in `heads`, drawn at random from all others.
 * @param {Pick<Layer, "key" | "heads">[]} layers
 * @param {HeadOfLayer[]} heads
 * @param {() => number} random from 0 to below 1
 * @returns {HeadOfLayer[]}
 */
export function drawOthers(layers, heads, random = Math.random) {
  const others = layers
    .flatMap(({ key, heads: own }) => own.map((head) => ({ layer: key, head })))
    .filter(({ layer, head }) => !heads.some((one) => one.layer === layer && one.head === head));
  return heads.flatMap(() => others.splice(Math.floor(random() * others.length), 1));
}

/**
 * The same cuts in random other heads; null if there are too few, or a cut is of all heads of a layer.
 * @param {Cut[]} cuts
 * @param {Pick<Layer, "key" | "heads">[]} layers
 * @param {() => number} random
 */
export function randomCuts(cuts, layers, random = Math.random) {
  const names = [...new Set(cuts.map(({ layer, head }) => JSON.stringify({ layer, head })))];
  /** @type {{ layer: string, head: number | null }[]} */
  const heads = names.map((name) => JSON.parse(name));
  if (heads.some(({ head }) => head === null)) return null;
  const others = drawOthers(layers, /** @type {HeadOfLayer[]} */ (heads), random);
  if (others.length < heads.length) return null;
  return cuts.map(({ layer, head, ...cut }) => {
    const other = others[names.indexOf(JSON.stringify({ layer, head }))];
    return /** @type {Cut} */ ({ ...cut, ...other });
  });
}
