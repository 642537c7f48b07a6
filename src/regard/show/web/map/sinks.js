// @ts-check
// The key that takes the most of a head's attention, when it is to stand apart from the rest of the map.

import { settings, cellsAlong } from "../data/settings.js";

const LEAST_REST = 0.01; // of a query's attention: what it leaves beside its sink is not blown up further

/** A head's sink: its key, the weights of its column, and the share of all attention that goes there. */
export class Sink {
  /**
   * @param {number} key
   * @param {Float32Array} column
   */
  constructor(key, column) {
    this.key = key;
    this.column = column;
    this.sums = new Float64Array(column.length + 1);
    column.forEach((weight, row) => (this.sums[row + 1] = this.sums[row] + weight));
    this.share = this.sums[column.length] / column.length;
  }

  /**
   * What the sink leaves of the attention of the queries from `first` to before `last`, on average.
   * @param {number} first
   * @param {number} last
   */
  rest(first, last) {
    return Math.max(LEAST_REST, 1 - (this.sums[last] - this.sums[first]) / (last - first));
  }

  /**
   * The same for each row of cells of tile row i at level z.
   * @param {number} z
   * @param {number} i
   */
  rests(z, i) {
    const size = 2 ** z;
    const all = this.column.length;
    const rows = cellsAlong(all, z, i);
    return Float32Array.from({ length: rows }, (_, y) => {
      const first = (i * settings.tile + y) * size;
      return this.rest(first, Math.min(all, first + size));
    });
  }
}

/**
 * A promise of the sink of one head. `layer` is what the meta says of it.
 * @param {Source} source
 * @param {number} text
 * @param {Layer} layer
 * @param {number} head
 */
export async function findSink(source, text, layer, head) {
  const { sinks } = await source.thumbs(text, layer.key);
  const { key } = sinks[layer.heads.indexOf(head)];
  return new Sink(key, await source.column(text, layer.key, head, key));
}
