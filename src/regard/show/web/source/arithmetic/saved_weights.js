// @ts-check
// What a saved page shows, from the packed blocks of its file: tiles, rows, columns and steps are computed, the rest is
// read. It knows neither the page nor on which thread it runs; `responder.js` brings it questions.

import { LRU, once } from "../../data/lru.js";
import { inUnits } from "../../data/units.js";
import { LinearHead } from "./linear_weights.js";
import { unpackArrays, unpackJson } from "./packed.js";
import { rowSteps } from "./row_steps.js";
import { columnOf, rowOf, Head } from "./weights.js";

const HEADS = 8; // whose arrays are ready
const UNMEASURED =
  "What a smaller cache keeps was not measured on this text, since the page cannot do it: regard inspect --text does.";

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

/**
 * What the meta says of a layer, which must exist.
 * @param {Meta} meta
 * @param {number} text
 * @param {string} key
 */
export function namedLayer(meta, text, key) {
  const layer = meta.texts[text].layers.find((one) => one.key === key);
  if (!layer) throw new Error(`There is no layer ${key}.`);
  return layer;
}

/**
 * What a file holds of where the logit of a token after a position comes from; token -1 is the likeliest.
 * @param {Attribution[]} stored of a text, the likeliest token first
 * @param {number} position
 * @param {number} token
 */
export function storedAttribution(stored, position, token) {
  const found = stored.find((one) => one.position === position && (token < 0 || one.token.id === token));
  if (!found)
    throw new Error(`This file holds no contributions to token ${token} after position ${position}.`);
  return found;
}

/**
 * What the model expects after a position.
 * @param {Pick<Arrays, "probabilities" | "ranks"> & { losses: Float32Array | Float64Array }} arrays of all positions
 * @param {(place: number) => { id: number, token: string }} likely the token that belongs to a probability
 * @param {string[] | null} tokens of the text
 * @param {number} position
 * @returns {Prediction}
 */
export function describePrediction({ probabilities, losses, ranks }, likely, tokens, position) {
  const count = probabilities.length / (losses.length + 1); // for each position
  const likeliest = Array.from(
    probabilities.subarray(position * count, (position + 1) * count),
    (probability, n) => ({
      ...likely(position * count + n),
      probability,
    }),
  );
  const loss = losses[position];
  const known = position < losses.length && Number.isFinite(loss);
  const token = tokens?.[position + 1] ?? null;
  const next = known ? { token, probability: Math.exp(-loss), rank: ranks[position], loss } : null;
  return { position, likeliest, next };
}

export class SavedWeights {
  /**
   * @param {SavedData} data
   * @param {(name: string) => Promise<string>} blockText the text of a block, asked for once
   */
  constructor(data, blockText) {
    this.data = data;
    this.meta = data.meta;
    this.blocks = data.blocks;
    this.blockText = blockText;
    /** @type {Map<string, Promise<any>>} */
    this.arrays = new Map(); // those of a block, by its name
    /** @type {LRU<Promise<Head | LinearHead>>} */
    this.heads = new LRU(HEADS);
    /** @type {Promise<Record<string, SurveyHead>> | undefined} */
    this.survey = undefined; // by layer/head
  }

  /**
   * @param {LayerQuestion} question
   * @param {Pause} _pause
   * @returns {Promise<Thumbs>}
   */
  async thumbs({ text, layer }, _pause) {
    const { layers } = this.meta.texts[text];
    const about = namedLayer(this.meta, text, layer);
    const { pictures } = await this.block(`thumbs-${text}`);
    const before = layers.slice(0, layers.indexOf(about)).reduce((sum, { heads }) => sum + heads.length, 0);
    const size = this.meta.thumb ** 2;
    return {
      // A copy: the buffers of an answer are moved to the page.
      pictures: pictures.slice(before * size, (before + about.heads.length) * size),
      sinks: this.data.sinks[text][layer],
    };
  }

  /**
   * @param {LayerQuestion} question
   * @param {Pause} _pause
   */
  async layerHeads({ text, layer }, _pause) {
    return this.data.heads[text].filter((row) => row.layer === layer);
  }

  /** @param {AttributionQuestion} question */
  async attribution({ text, position, token }) {
    return storedAttribution(this.data.attributions[text], position, token);
  }

  /** @param {{ text: number, position: number }} question */
  async prediction({ text, position }) {
    const arrays = await this.block(`predictions-${text}`);
    const { ids, places } = arrays;
    const words = this.data.words[text];
    const likely = (/** @type {number} */ n) => ({ id: ids[places[n]], token: words[places[n]] });
    return describePrediction(arrays, likely, this.meta.texts[text].tokens, position);
  }

  /** @param {LayerQuestion} question */
  async retained({ text, layer }) {
    const table = this.data.retained[text]?.[layer];
    if (!table) throw new Error(UNMEASURED);
    return table;
  }

  /** @param {HeadOfLayer} question */
  async surveyHead({ layer, head }) {
    this.survey ??= this.blockText("survey").then(unpackJson);
    return (await this.survey)[`${layer}/${head}`];
  }

  /**
   * @param {TileQuestion} question
   * @param {Pause} pause
   */
  async tile(question, pause) {
    const { z, i, j } = question;
    const [one, parts] = await Promise.all([this.head(question), this.parts(question)]);
    return one.tile(z, i, j, parts, pause);
  }

  /**
   * @param {LineQuestion} question
   * @param {Pause} pause
   */
  row(question, pause) {
    const single = question.quantity.shade === "logit" ? { queries: null } : {}; // contributions are of one query
    return this.mean(question, (one, parts) => rowOf(one, question.index, { ...parts, ...single }), pause);
  }

  /**
   * @param {LineQuestion} question
   * @param {Pause} pause
   */
  column(question, pause) {
    return this.mean(question, (one, parts) => columnOf(one, question.index, parts), pause);
  }

  /** @param {StepsQuestion} question */
  async steps(question) {
    const { text, layer, row } = question;
    const [one, v] = await Promise.all([this.head(question), this.values(question)]);
    if (!(one instanceof Head)) throw new Error(`Layer ${layer} has no softmax, and no steps of one.`);
    return rowSteps(one, v, namedLayer(this.meta, text, layer), row, this.meta.strongest);
  }

  /**
   * The mean over the heads asked for, of what `look` finds in each; contributions to a logit are added up.
   * @param {LineQuestion} question
   * @param {(head: HeadMap, parts: TileParts) => Float32Array} look
   * @param {Pause} pause
   */
  async mean({ text, layer, head: number, quantity }, look, pause) {
    const some = layer === "mean" ? this.meta.texts[text].layers : [namedLayer(this.meta, text, layer)];
    const places = some.flatMap(({ key, heads }) =>
      (number === "mean" ? heads : [number]).map((head) => ({ text, layer: key, head, quantity })),
    );
    /** @type {Float32Array | null} */
    let total = null;
    for (const place of places) {
      const found = look(await this.head(place), await this.parts(place));
      await pause();
      total ??= new Float32Array(found.length);
      if (found.length !== total.length)
        throw new Error("The layers see different texts, so that they have no mean.");
      for (let i = 0; i < found.length; i++) total[i] += found[i];
    }
    total ??= new Float32Array(0);
    const count = quantity.shade === "logit" ? 1 : places.length;
    if (count > 1) for (let i = 0; i < total.length; i++) total[i] /= count;
    return total;
  }

  /**
   * What a quantity takes of a head beside its weights: the factors of its keys, and its units.
   * @param {HeadPlace & { quantity: Quantity }} question
   * @returns {Promise<TileParts>}
   */
  async parts({ text, layer, head, quantity }) {
    const about = namedLayer(this.meta, text, layer);
    const { units } = inUnits(this.meta, about, quantity);
    const axes = { queries: units?.queries.edges ?? null, keys: units?.keys.edges ?? null };
    if (quantity.shade === "weights") return axes;
    const { factors } = await this.block(this.factorsBlock(text, layer, quantity));
    return { ...axes, factors: part(factors, about.heads.indexOf(head), about.cols) };
  }

  /**
   * The name of the block with the factors of a layer's keys.
   * @param {number} text
   * @param {string} layer
   * @param {Quantity} quantity
   */
  factorsBlock(text, layer, { shade, position, token }) {
    if (shade === "values") return `norms-${text}-${layer}`;
    const { id } = storedAttribution(this.data.attributions[text], position, token).token;
    return `logit-${text}-${layer}-${position}-${id}`;
  }

  /**
   * One head's arrays, ready to compute with.
   * @param {HeadPlace} place
   */
  head({ text, layer, head }) {
    return once(this.heads, `${text} ${layer} ${head}`, () => this.prepare({ text, layer, head }));
  }

  /** @param {HeadPlace} place */
  async prepare({ text, layer, head }) {
    const about = namedLayer(this.meta, text, layer);
    const h = about.heads.indexOf(head);
    if (h < 0) throw new Error(`Layer ${layer} has no head ${head}.`);
    const names = [about.block ?? "", about.mask_block ?? ""];
    const [whole, masks] = await Promise.all(names.map((name) => this.block(name)));
    const { rows: T, cols: S, width: D } = about;
    const own = (/** @type {Float32Array} */ array, /** @type {number} */ size) =>
      part(array, array.length === size ? 0 : h, size);
    const alike = masks.offsets.length === T + 1; // all heads see the same
    const offsets = alike ? masks.offsets : masks.offsets.subarray(h * T, (h + 1) * T + 1);
    const g = Math.floor(h / about.group);
    if (about.recurrence) {
      return new LinearHead({
        T,
        S,
        D,
        q: part(whole.q, g, S * D),
        k: part(whole.k, g, S * D),
        decay: part(whole.decay, h, whole.decay.length / about.heads.length),
        beta: part(whole.beta, h, S),
        skip: whole.skip[h],
        deltaRule: about.delta_rule ?? false,
        offsets,
        ranges: masks.ranges,
      });
    }
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
   * One head's values, or null if the file does not hold them.
   * @param {HeadPlace} place
   */
  async values({ text, layer, head }) {
    const about = namedLayer(this.meta, text, layer);
    if (!about.values_block) return null;
    const { v, v_step: steps } = await this.block(about.values_block);
    const width = about.value_width ?? 0;
    const size = about.cols * width;
    const g = Math.floor(about.heads.indexOf(head) / (about.heads.length / (v.length / size)));
    return scaled(part(v, g, size), steps && part(steps, g, width));
  }

  /**
   * The arrays of a block.
   * @param {string} name
   */
  block(name) {
    return once(this.arrays, name, async () =>
      unpackArrays(name, await this.blockText(name), this.blocks[name]),
    );
  }
}
