// @ts-check
// Which tiles a picture needs, and what stands in for those that are not there yet.
// A tile of level z is a square of cells of 2^z × 2^z tokens, as `source.js` gives it.

import { clamp } from "../data/arrays.js";
import { LRU } from "../data/lru.js";
import { PLAIN, quantityName } from "../data/quantity.js";
import { settings, overviewLevel, topLevel } from "../data/settings.js";

const KEPT = 128; // tiles of one head

/**
 * The level at which a cell is about one pixel of the screen: from 0.7 to 1.4.
 * @param {number} pixels
 * @param {number} T
 * @param {number} S
 */
export function levelFor(pixels, T, S) {
  return Math.min(topLevel(T, S), Math.max(0, Math.round(-Math.log2(pixels))));
}

/** @typedef {HeadPlace & { quantity: Quantity }} PyramidHead */

export class TilePyramid {
  /**
   * `changed` is called when a tile has come, `failed` with an error that is not about leaving.
   * @param {Pick<Source, "tile" | "atOnce">} source
   * @param {() => void} changed
   * @param {(error: Error) => void} failed
   */
  constructor(source, changed, failed) {
    this.source = source;
    this.changed = changed;
    this.failed = failed;
    this.name = ""; // of the head that it looks at
    /** @type {PyramidHead} */
    this.head = { text: 0, layer: "", head: -1, quantity: PLAIN };
    this.T = 0;
    this.S = 0;
    /** @type {LRU<PaintedTile>} */
    this.tiles = new LRU(KEPT);
    /** @type {Map<string, AbortController>} */
    this.asked = new Map();
    this.stopped = false; // by the reader, until they go on or turn to another head
  }

  /**
   * Turns to a head, whose map has T queries and S keys.
   * @param {PyramidHead & { T: number, S: number }} pyramid
   */
  look({ T, S, ...head }) {
    const name = [head.text, head.layer, head.head, quantityName(head.quantity)].join(" ");
    if (name === this.name) return;
    for (const [, stop] of this.asked) stop.abort();
    Object.assign(this, { name, head, T, S });
    Object.assign(this, { tiles: new LRU(KEPT), asked: new Map(), stopped: false });
  }

  /**
   * What to draw for a frame (in tokens) at level z: a list, coarse before fine, of
   * {tile, z, i, j, part: {left, top, right, bottom}}, where the part is what shall be seen of it, in tokens;
   * the tile is null where nothing is there yet.
   * Missing tiles are asked for, and after them those of the overview. `complete` says whether all are there.
   * @param {Rectangle} frame
   * @param {number} z
   */
  cover(frame, z) {
    const { drawn, missing } = this.find(frame, z);
    this.ask(this.stopped ? [] : [...missing, ...this.overview().missing]);
    return { drawn, complete: missing.length === 0, missing: missing.length, needed: drawn.length };
  }

  /** The whole map at the level at which its colours are fitted; `cover` asks for it. */
  overview() {
    const { T, S } = this;
    const found = this.find({ left: 0, top: 0, right: S, bottom: T }, overviewLevel(T, S));
    return { ...found, complete: found.missing.length === 0 };
  }

  /**
   * What to draw for a frame at level z, and the places of the tiles that are not there yet, from its middle on.
   * @param {Rectangle} frame
   * @param {number} z
   */
  find(frame, z) {
    const span = settings.tile * 2 ** z;
    /** @type {(value: number, size: number) => number} */
    const within = (value, size) => clamp(Math.floor(value / span), 0, Math.ceil(size / span) - 1);
    const [top, bottom] = [within(frame.top, this.T), within(frame.bottom, this.T)];
    const [left, right] = [within(frame.left, this.S), within(frame.right, this.S)];
    /** @type {DrawnTile[]} */
    const drawn = [];
    /** @type {TilePlace[]} */
    const missing = [];
    for (let i = top; i <= bottom; i++) {
      for (let j = left; j <= right; j++) {
        const found = this.nearest(z, i, j);
        drawn.push({ ...(found ?? { tile: null, z, i, j }), part: this.part(z, i, j) });
        if (!found || found.z !== z) missing.push([z, i, j]);
      }
    }
    drawn.sort((a, b) => b.z - a.z);
    const middle = [(frame.top + frame.bottom) / 2 / span - 0.5, (frame.left + frame.right) / 2 / span - 0.5];
    const far = (/** @type {TilePlace} */ [, i, j]) => (i - middle[0]) ** 2 + (j - middle[1]) ** 2;
    missing.sort((a, b) => far(a) - far(b));
    return { drawn, missing };
  }

  /**
   * The tile, or the finest coarser one that covers it.
   * @param {number} z
   * @param {number} i
   * @param {number} j
   */
  nearest(z, i, j) {
    for (let up = 0; z + up <= topLevel(this.T, this.S); up++) {
      const [y, x] = [i >> up, j >> up];
      const key = `${z + up} ${y} ${x}`;
      const tile = this.tiles.get(key);
      if (tile) return { tile, z: z + up, i: y, j: x };
    }
    return null;
  }

  /**
   * The tokens that a tile covers.
   * @param {number} z
   * @param {number} i
   * @param {number} j
   * @returns {Rectangle}
   */
  part(z, i, j) {
    const span = settings.tile * 2 ** z;
    return {
      left: j * span,
      right: Math.min(this.S, (j + 1) * span),
      top: i * span,
      bottom: Math.min(this.T, (i + 1) * span),
    };
  }

  /**
   * Asks for tiles, nearest first, a few at once; aborts requests that are no longer needed.
   * @param {TilePlace[]} missing
   */
  ask(missing) {
    const keys = new Set(missing.map((place) => place.join(" ")));
    for (const [key, stop] of this.asked) {
      if (!keys.has(key)) {
        stop.abort();
        this.asked.delete(key);
      }
    }
    for (const place of missing) {
      if (this.asked.size >= this.source.atOnce) break;
      if (!this.asked.has(place.join(" "))) this.fetch(place);
    }
  }

  /** @param {TilePlace} place */
  async fetch([z, i, j]) {
    const key = `${z} ${i} ${j}`;
    const { name } = this;
    const stop = new AbortController();
    this.asked.set(key, stop);
    try {
      const tile = await this.source.tile({ ...this.head, z, i, j }, stop.signal);
      if (name !== this.name) return;
      this.tiles.set(key, { ...tile });
    } catch (error) {
      if (error.name !== "AbortError" && name === this.name) this.failed(error);
      return;
    } finally {
      if (this.asked.get(key) === stop) this.asked.delete(key);
    }
    this.changed();
  }

  /**
   * The numbers of the cell that holds a place, from the finest tile that is there: {mass, max, z}.
   * @param {number} row
   * @param {number} col
   * @param {number} [finest] the level to begin with
   */
  cell(row, col, finest = 0) {
    for (let z = finest; z <= topLevel(this.T, this.S); z++) {
      const [y, x] = [Math.floor(row / 2 ** z), Math.floor(col / 2 ** z)];
      const tile = this.tiles.get(`${z} ${Math.floor(y / settings.tile)} ${Math.floor(x / settings.tile)}`);
      if (!tile) continue;
      const at = (y % settings.tile) * tile.cols + (x % settings.tile);
      return { mass: tile.mass[at], max: tile.max[at], z };
    }
    return null;
  }
}
