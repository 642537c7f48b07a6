// @ts-check
// The page's numbers from the file itself: q, k and lse of every layer lie in it, packed.

import { LRU } from "../common/lru.js";
import { THUMB } from "../common/tile.js";
import { evictionOf } from "./eviction.js";
import { arrays, json } from "./packed.js";
import { rowSteps } from "./row_steps.js";
import { Head } from "./weights.js";

const KEPT = 96; // tiles
const HEADS = 8; // whose arrays are ready

/**
 * Numbers times the step of their channel, or as they are where there are no steps.
 * @param {Float32Array} numbers
 * @param {Float32Array} [steps]
 */
function scaled(numbers, steps) {
  return steps ? numbers.map((number, i) => number * steps[i % steps.length]) : numbers;
}

/**
 * The array that stands at `index` in a list of arrays of `size` numbers.
 * @param {Float32Array} array
 * @param {number} index
 * @param {number} size
 */
function part(array, index, size) {
  return array.subarray(index * size, (index + 1) * size);
}

/** @returns {Promise<Source>} */
export async function openSaved() {
  /** @type {SavedData} */
  const { meta, blocks, sinks, heads } = await json("regard-data");
  /** @type {Map<string, Promise<Arrays>>} */
  const layers = new Map(); // "text layer" → a promise of its arrays
  /** @type {LRU<Tile>} */
  const tiles = new LRU(KEPT);
  /** @type {Map<string, Promise<Eviction>>} */
  const evictions = new Map();
  /**
   * @template V
   * @param {Map<string, V>} map
   * @param {string} key
   * @param {() => V} make
   * @returns {V}
   */
  const once = (map, key, make) => {
    const made = map.get(key) ?? make();
    map.set(key, made);
    return made;
  };
  /** @param {string} name */
  const block = (name) => once(layers, name, () => arrays(name, blocks[name]));
  /**
   * @param {number} text
   * @param {string} layer
   */
  const described = (text, layer) => {
    const found = meta.texts[text].layers.find((one) => one.key === layer);
    if (!found) throw new Error(`There is no layer ${layer}.`);
    return found;
  };

  /** @type {LRU<Promise<Head>>} */
  const ready = new LRU(HEADS); // a promise of each
  /**
   * One head's arrays, ready to compute with.
   * @param {number} text
   * @param {string} layer
   * @param {number} number
   */
  function head(text, layer, number) {
    const key = [text, layer, number].join(" ");
    const known = ready.get(key) ?? prepared(text, layer, number);
    ready.set(key, known);
    return known;
  }

  /**
   * @param {number} text
   * @param {string} layer
   * @param {number} number
   */
  async function prepared(text, layer, number) {
    const about = described(text, layer);
    const h = about.heads.indexOf(number);
    if (h < 0) throw new Error(`Layer ${layer} has no head ${number}.`);
    const [whole, masks] = await Promise.all([block(about.block ?? ""), block(about.mask_block ?? "")]);
    const { rows: T, cols: S, width: D } = about;
    const own = (/** @type {Float32Array} */ array, /** @type {number} */ size) =>
      part(array, array.length === size ? 0 : h, size);
    const alike = masks.offsets.length === T + 1; // all heads see the same
    const offsets = alike ? masks.offsets : masks.offsets.subarray(h * T, (h + 1) * T + 1);
    const g = Math.floor(h / about.group);
    return new Head({
      T,
      S,
      D,
      q: scaled(part(whole.q, h, T * D), whole.q_step && part(whole.q_step, h, D)),
      k: scaled(part(whole.k, g, S * D), whole.k_step && part(whole.k_step, g, D)),
      mean: part(whole.mean, g, D),
      lse: whole.lse.subarray(h * T, (h + 1) * T),
      scale: about.scale,
      softcap: about.softcap,
      offsets,
      ranges: masks.ranges,
      relative: masks.relative ? own(masks.relative, T + S - 1) : null,
      dense: masks.dense ? own(masks.dense, T * S) : null,
    });
  }

  /**
   * @param {number} text
   * @param {string} layer
   * @param {number} number
   */
  async function values(text, layer, number) {
    const about = described(text, layer);
    if (!about.values_block) return null;
    const { v } = await block(about.values_block);
    const size = about.cols * (about.value_width ?? 0);
    const g = Math.floor(about.heads.indexOf(number) / (about.heads.length / (v.length / size)));
    return v.subarray(g * size, (g + 1) * size);
  }

  /**
   * The mean over the heads asked for, of what `look` finds in each.
   * @param {number} text
   * @param {string} layer
   * @param {number | "mean"} number
   * @param {(head: Head) => Float32Array} look
   */
  async function mean(text, layer, number, look) {
    const some = layer === "mean" ? meta.texts[text].layers : [described(text, layer)];
    /** @type {Float32Array | null} */
    let total = null;
    let count = 0;
    for (const about of some) {
      for (const one of number === "mean" ? about.heads : [number]) {
        const found = look(await head(text, about.key, one));
        total ??= new Float32Array(found.length);
        if (found.length !== total.length)
          throw new Error("The layers see different texts, so that they have no mean.");
        for (let i = 0; i < found.length; i++) total[i] += found[i];
        count++;
      }
    }
    total ??= new Float32Array(0);
    if (count > 1) for (let i = 0; i < total.length; i++) total[i] /= count;
    return total;
  }

  return {
    meta,
    atOnce: 1, // there is one of us to compute
    async thumbs(text, layer) {
      const about = described(text, layer);
      const { pictures } = await block(`thumbs-${text}`);
      const size = THUMB * THUMB;
      let before = 0;
      for (const one of meta.texts[text].layers) {
        if (one === about) break;
        before += one.heads.length;
      }
      return {
        pictures: pictures.subarray(before * size, (before + about.heads.length) * size),
        sinks: sinks[text][layer],
      };
    },
    async tile(text, layer, number, z, i, j, options = {}) {
      const key = [text, layer, number, z, i, j, options.without ?? null].join(" ");
      const known = tiles.get(key);
      if (known) return known;
      const made = await (await head(text, layer, number)).tile(z, i, j, options);
      tiles.set(key, made);
      return made;
    },
    row: (text, layer, number, row) => mean(text, layer, number, (one) => one.row(row)),
    column: (text, layer, number, col) => mean(text, layer, number, (one) => one.column(col)),
    heads: async (text) => heads[text],
    async steps(text, layer, number, row) {
      const one = await head(text, layer, number);
      return rowSteps(one, await values(text, layer, number), described(text, layer), row);
    },
    capture: () => Promise.reject(new Error("A saved page has no model that could read a text.")),
    generate: () => Promise.reject(new Error("A saved page has no model that could go on with a text.")),
    eviction: (text, layer) =>
      once(evictions, `${text} ${layer}`, async () =>
        evictionOf(
          await Promise.all(described(text, layer).heads.map((number) => head(text, layer, number))),
        ),
      ),
  };
}
