// @ts-check
// The difference of two heads, wherever each of them is: of two layers, of two texts, of two captures.

import { tileDifference } from "../source/differences.js";

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
    async tile(_text, _layer, _head, z, i, j, { signal } = {}) {
      const [one, other] = await Promise.all(
        [a, b].map(({ text, layer, head }) => source.tile(text, layer, head, z, i, j, { signal })),
      );
      return tileDifference(one, other);
    },
  });
}
