// @ts-check
// Attention weights from q, k and lse: exp(scale · q·k + bias − lse), where the mask lets look. It knows one head's arrays;
// it does not know files, pages or colours. What rows, columns and tiles are made of is `HeadMap`, which linear layers share.

import { cellsAlong, settings } from "../../data/settings.js";
import { dotProducts } from "./products.js";

/** The weights of one head, each row by its own `weigh`. */
export class HeadMap {
  signed = false; // whether weights have either sign

  /** @param {Pick<HeadArrays, "T" | "S" | "D" | "offsets" | "ranges">} parts */
  constructor({ T, S, D, offsets, ranges }) {
    this.T = T;
    this.S = S;
    this.D = D;
    this.offsets = offsets;
    this.ranges = ranges;
  }

  /**
   * Calls `visit(from, to)` for the stretches of keys that query i sees from `first` to before `last`.
   * @param {number} i
   * @param {number} first
   * @param {number} last
   * @param {(from: number, to: number) => void} visit
   */
  stretches(i, first, last, visit) {
    for (let n = this.offsets[i]; n < this.offsets[i + 1]; n++) {
      const from = Math.max(first, this.ranges[2 * n]);
      const to = Math.min(last, this.ranges[2 * n + 1]);
      if (from < to) visit(from, to);
    }
  }

  /**
   * Writes the weights of query i and keys `from` to before `to` into `out`, at their own places.
   * @param {number} i
   * @param {number} from
   * @param {number} to
   * @param {Float32Array} out
   */
  weigh(i, from, to, out) {
    out.fill(NaN, from, to); // every kind of head has its own
  }

  /**
   * Calls `visit(j, weight)` for the visible keys of query i from `first` to before `last`.
   * @param {number} i
   * @param {number} first
   * @param {number} last
   * @param {(key: number, weight: number) => void} visit
   */
  visible(i, first, last, visit) {
    const line = new Float32Array(this.S);
    this.stretches(i, first, last, (from, to) => {
      this.weigh(i, from, to, line);
      for (let j = from; j < to; j++) visit(j, line[j]);
    });
  }

  /** @param {number} i */
  row(i) {
    const out = new Float32Array(this.S);
    this.stretches(i, 0, this.S, (from, to) => this.weigh(i, from, to, out));
    return out;
  }

  /** @param {number} j */
  column(j) {
    const [line, out] = [new Float32Array(this.S), new Float32Array(this.T)];
    for (let i = 0; i < this.T; i++) {
      this.stretches(i, j, j + 1, (from, to) => {
        this.weigh(i, from, to, line);
        out[i] = line[j];
      });
    }
    return out;
  }

  /**
   * Tile (i, j) of level z, as `source.js` describes it.
   * @param {number} z
   * @param {number} i
   * @param {number} j
   * @param {TileParts} [parts]
   * @param {Pause} [pause]
   * @returns {Promise<Tile>}
   */
  async tile(z, i, j, parts = {}, pause = async () => {}) {
    const { factors = null, queries = null, keys = null } = parts;
    const down = cellsOf(queries, this.T, z, i);
    const across = cellsOf(keys, this.S, z, j);
    const [rows, cols] = [down.tokens.length, across.tokens.length];
    const mass = new Float32Array(rows * cols);
    const max = new Float32Array(rows * cols).fill(-1);
    const line = new Float32Array(this.S);
    const signed = this.signed || factors; // of such cells the greatest weight says nothing
    for (let query = down.first; query < down.last; query++) {
      const at = down.cells[query - down.first] * cols;
      this.stretches(query, across.first, across.last, (from, to) => {
        this.weigh(query, from, to, line);
        if (factors) for (let key = from; key < to; key++) line[key] *= factors[key];
        for (let key = from; key < to; key++) {
          const cell = at + across.cells[key - across.first];
          mass[cell] += line[key];
          if (line[key] > max[cell]) max[cell] = line[key];
        }
        if (signed) for (let key = from; key < to; key++) max[at + across.cells[key - across.first]] = 0;
      });
      await pause();
    }
    for (let y = 0; y < rows; y++) for (let x = 0; x < cols; x++) mass[y * cols + x] /= down.tokens[y];
    return { mass, max, rows, cols };
  }
}

/** One head of softmax attention; `HeadArrays` in `types.d.ts` says what its arrays are. */
export class Head extends HeadMap {
  /** @param {HeadArrays} parts */
  constructor(parts) {
    super(parts);
    this.q = Float64Array.from(parts.q);
    this.k = parts.k;
    this.mean = parts.mean;
    this.lse = parts.lse;
    this.scale = parts.scale;
    this.softcap = parts.softcap;
    this.relative = parts.relative;
    this.dense = parts.dense;
    this.line = new Float64Array(this.S);
  }

  /** @type {HeadMap["weigh"]} */
  weigh(i, from, to, out) {
    const { T, S, D, scale, softcap, relative, dense, line } = this;
    const lse = this.lse[i];
    dotProducts(this.q, i * D, this.k, from * D, D, D, line, from, to - from);
    for (let j = from; j < to; j++) {
      let score = scale * line[j];
      if (softcap) score = softcap * Math.tanh(score / softcap);
      if (relative) score += relative[j - i + T - 1];
      else if (dense) score += dense[i * S + j];
      out[j] = Math.exp(score - lse);
    }
  }
}

/**
 * The cells of one row or column of tiles: the tokens that it begins and ends with, the cell of each token, and the
 * number of tokens in each cell.
 * @param {number[] | null} edges of the units, if they are not tokens
 * @param {number} size tokens of the axis
 * @param {number} z
 * @param {number} index
 */
function cellsOf(edges, size, z, index) {
  const units = edges ? edges.length - 1 : size;
  const start = index * settings.tile;
  const edge = (/** @type {number} */ cell) => {
    const unit = Math.min(units, (start + cell) * 2 ** z);
    return edges ? edges[unit] : unit;
  };
  const count = cellsAlong(units, z, index);
  const [first, last] = [edge(0), edge(count)];
  const cells = new Uint16Array(last - first);
  const tokens = Array.from({ length: count }, (_, cell) => edge(cell + 1) - edge(cell));
  for (let cell = 0; cell < count; cell++) cells.fill(cell, edge(cell) - first, edge(cell + 1) - first);
  return { first, last, cells, tokens };
}

/**
 * What the units along an axis have together, from what each token has.
 * @param {Float32Array} line
 * @param {number[] | null} edges of the units, or null for tokens
 * @param {boolean} mean divided by their numbers of tokens
 */
function added(line, edges, mean) {
  if (!edges) return line;
  return Float32Array.from({ length: edges.length - 1 }, (_, unit) => {
    const [first, last] = [edges[unit], edges[unit + 1]];
    let sum = 0;
    for (let token = first; token < last; token++) sum += line[token];
    return mean ? sum / (last - first) : sum;
  });
}

/**
 * The tokens of a unit: the first, and where it ends.
 * @param {number[] | null} edges
 * @param {number} unit
 */
function tokensOf(edges, unit) {
  return edges ? [edges[unit], edges[unit + 1]] : [unit, unit + 1];
}

/**
 * What a query, or the queries of a unit on average, give to each key or to the keys of each unit.
 * @param {HeadMap} head
 * @param {number} index
 * @param {TileParts} parts
 */
export function rowOf(head, index, { factors = null, queries = null, keys = null }) {
  const [first, last] = tokensOf(queries, index);
  const total = new Float32Array(head.S);
  for (let query = first; query < last; query++)
    head.row(query).forEach((w, key) => (total[key] += (w * (factors ? factors[key] : 1)) / (last - first)));
  return added(total, keys, false);
}

/**
 * What a key, or the keys of a unit together, get from each query or from the queries of each unit on average.
 * @param {HeadMap} head
 * @param {number} index
 * @param {TileParts} parts
 */
export function columnOf(head, index, { factors = null, queries = null, keys = null }) {
  const [first, last] = tokensOf(keys, index);
  const total = new Float32Array(head.T);
  for (let key = first; key < last; key++)
    head.column(key).forEach((w, query) => (total[query] += w * (factors ? factors[key] : 1)));
  return added(total, queries, true);
}
