// @ts-check
// Differences of two texts' maps. What is added up over a cell is linear, so that the difference of two tiles, rows or
// columns is that of the maps, exactly.

import { PLAIN } from "../data/quantity.js";

/**
 * A source that also answers questions about differences.
 * @param {Source} source
 * @returns {Source}
 */
export function withDifferences(source) {
  const { tile, row, column } = source;
  /**
   * The same quantity of one text: contributions to the token that is likeliest in the first, also in the second.
   * @param {number} text
   * @param {Quantity} quantity
   * @returns {Promise<Quantity>}
   */
  const ofOne = async (text, quantity) => {
    const own = { ...quantity, against: -1 };
    if (own.shade !== "logit" || own.token >= 0) return own;
    const { token } = await source.attribution(text, own.position, own.token);
    return { ...own, token: token.id };
  };
  /**
   * @param {AskLine} ask
   * @returns {AskLine}
   */
  const line =
    (ask) =>
    async (text, layer, head, index, quantity = PLAIN) => {
      const { against } = quantity;
      if (against < 0) return ask(text, layer, head, index, quantity);
      const own = await ofOne(text, quantity);
      const [a, b] = await Promise.all([text, against].map((one) => ask(one, layer, head, index, own)));
      return a.map((value, i) => value - b[i]);
    };
  return Object.assign(source, {
    row: line(row),
    column: line(column),
    /** @type {Source["tile"]} */
    async tile(text, layer, head, z, i, j, options = {}) {
      const { quantity = PLAIN } = options;
      const { against } = quantity;
      if (against < 0) return tile(text, layer, head, z, i, j, options);
      const own = { ...options, quantity: await ofOne(text, quantity) };
      const [a, b] = await Promise.all([text, against].map((one) => tile(one, layer, head, z, i, j, own)));
      return tileDifference(a, b);
    },
  });
}

/**
 * One tile less another. What the mask hides in both is hidden.
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
