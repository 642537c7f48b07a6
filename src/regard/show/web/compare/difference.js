// @ts-check
// The difference of two heads, wherever each of them is: of two layers, of two texts, of two captures.

import { PLAIN } from "../data/quantity.js";

/**
 * A source whose tiles and rows are those of one head less those of another of the same shape.
 * @param {Source} source
 * @param {HeadPlace} a
 * @param {HeadPlace} b
 * @returns {Source}
 */
export function differenceSource(source, a, b) {
  const own = Object.create(source);
  return Object.assign(own, {
    /** @type {Source["tile"]} */
    async tile(question, signal) {
      const [one, other] = await Promise.all(
        [a, b].map((place) => source.tile({ ...question, ...place, quantity: PLAIN }, signal)),
      );
      return tileDifference(one, other);
    },
  });
}

/**
 * One tile less another, which is exact, since what is added up over a cell is linear. What the mask hides in both is
 * hidden.
 * @param {Tile} a
 * @param {Tile} b
 * @returns {Tile}
 */
export function tileDifference(a, b) {
  const { rows, cols } = a;
  return {
    rows,
    cols,
    mass: a.mass.map((mass, n) => mass - b.mass[n]),
    max: a.max.map((max, n) => (max < 0 && b.max[n] < 0 ? -1 : 0)),
  };
}
