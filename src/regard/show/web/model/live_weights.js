// @ts-check
// The computing side of a page that holds a model: what `SavedWeights` answers, also of texts that the model reads
// here, and what only a model can do. It runs in a worker; `source/live.js` is the page's side.

import { LRU, once } from "../data/lru.js";
import { unpackArrays, unpackJson } from "../source/arithmetic/packed.js";
import { pauseOf } from "../source/arithmetic/responder.js";
import { describePrediction, namedLayer, SavedWeights } from "../source/arithmetic/saved_weights.js";
import { attribute, logitFactors, valueNorms } from "./contributions.js";
import { compareOutputs } from "./evidence.js";
import { LanguageModel } from "./forward.js";
import { generate } from "./generation.js";
import { headScores, describeScores } from "./head_scores.js";
import { changes } from "./predictions.js";
import { randomCuts } from "../data/random_heads.js";
import { Reading } from "./reading.js";
import { distinctTitle, tellingPosition, tellingQuery, titleOf } from "./telling.js";
import { thumbnails } from "./thumbnail.js";
import { Tokenizer } from "./tokens/tokenizer.js";
import { textUnits } from "./tokens/units.js";
import { arrangeWeights } from "./weights.js";

const MOST_CHANGED = 10; // tokens that are listed
const RANDOM_TOKENS = 1024; // of a text up to which a cut is compared with random heads
const ATTRIBUTED = 16; // logits whose parts are kept

export class LiveWeights extends SavedWeights {
  /** @param {ConstructorParameters<typeof SavedWeights>} file */
  constructor(...file) {
    super(...file);
    if (!this.data.model) throw new Error("This file holds no model.");
    this.about = this.data.model;
    /** @type {ReturnType<LiveWeights["open"]> | undefined} */
    this.opened = undefined;
    /** @type {Map<number, Reading>} */
    this.readings = new Map(); // by the text's number
    /** @type {Map<number, Promise<Reading>>} */
    this.stored = new Map(); // of texts of the file
    /** @type {LRU<Promise<LogitParts>>} */
    this.attributed = new LRU(ATTRIBUTED);
  }

  /** Opens the model; it reads the first text before anybody asks for its values. */
  async load() {
    await this.ready();
    if (this.about.ids[0]?.length) this.reading(0).catch(() => {}); // whoever asks is told
    return true;
  }

  /** The model and its tokenizer, opened once. */
  ready() {
    return (this.opened ??= this.open());
  }

  async open() {
    const [tokenizer, weights] = await Promise.all([
      this.blockText("model-tokenizer").then(unpackJson),
      this.blockText("model-weights"),
    ]);
    const { config, tensors } = this.about;
    const arrays = await unpackArrays("model-weights", weights, tensors);
    const named = /** @type {Record<string, Float32Array>} */ (/** @type {unknown} */ (arrays));
    for (const [name, steps] of Object.entries(named)) {
      const rounded = named[name.replace(/_step$/, "")];
      const width = rounded.length / steps.length;
      if (rounded !== steps) rounded.forEach((x, i) => (rounded[i] = x * steps[Math.floor(i / width)]));
    }
    return {
      model: new LanguageModel(config, arrangeWeights(config, named)),
      tokenizer: new Tokenizer(tokenizer),
    };
  }

  /**
   * The ids of a text; an error says why there are none.
   * @param {string} text
   */
  async encode(text) {
    const { tokenizer } = await this.ready();
    const most = this.about.characters;
    if (text.length > most)
      throw new Error(`This page reads at most ${most.toLocaleString("en")} characters: shorten the text.`);
    if (!text.trim()) throw new Error("There is no text to read: write or paste some.");
    return tokenizer.encode(text);
  }

  /**
   * Reads a text; the answer describes it as `meta.texts` does.
   * @param {ReadQuestion} question
   * @param {Pause} pause
   * @param {Tell} tell
   * @returns {Promise<LiveText | TooLong>}
   */
  async read({ text, first, continuation }, pause, tell) {
    const prompt = (await this.encode(text)).slice(0, first ?? undefined);
    const ids = [...prompt, ...continuation];
    const most = this.about.config.context_length;
    if (ids.length > most) return { too_long: { tokens: ids.length, most } };
    const title = distinctTitle(titleOf(text), this.meta.texts);
    const done = await this.run(ids, [], title, pause, tell);
    if (continuation.length) done.meta.boundary = prompt.length;
    return done;
  }

  /**
   * Reads the tokens of a text again, with heads or edges cut.
   * @param {CutQuestion} question
   * @param {Pause} pause
   * @param {Tell} tell
   * @returns {Promise<LiveText>}
   */
  async cut({ text, cuts }, pause, tell) {
    const { title } = this.meta.texts[text];
    const before = await this.losses(text);
    const ids = this.readings.get(text)?.ids ?? this.storedIds(text);
    const done = await this.run(ids, cuts, title, pause, tell);
    const after = this.readings.get(done.number)?.predictions.losses ?? [];
    const changed = changes(before, after, MOST_CHANGED);
    done.meta.edited = { text, cuts, edits: [], changes: changed, random: null };
    return done;
  }

  /**
   * The losses of a text. The file has those of its own texts: the model need not read them once more before a cut.
   * @param {number} text
   */
  async losses(text) {
    const name = `predictions-${text}`;
    return this.blocks[name]
      ? (await this.block(name)).losses
      : (await this.reading(text)).predictions.losses;
  }

  /**
   * The mean loss with the cuts of an edited run in other heads, drawn at random; null if there are none, or the text
   * is long. Asked for by itself, so that nobody waits for it to see the cut.
   * @param {{ text: number }} question
   * @param {Pause} pause
   */
  async randomLoss({ text }, pause) {
    const { model, ids, cuts } = await this.reading(text);
    const others = ids.length <= RANDOM_TOKENS ? randomCuts(cuts, this.about.layers) : null;
    if (!others) return null;
    const reading = new Reading(model, ids, others, this.about.likeliest);
    await reading.run(pause, () => {});
    return reading.predictions.summary().loss;
  }

  /**
   * What a run on a text left. A text of the file is read, once, when it is first asked for: several answers may wait
   * for it, so that none of them can stop it.
   * @param {number} text
   */
  async reading(text) {
    return this.readings.get(text) ?? once(this.stored, text, () => this.readStored(text));
  }

  /** @param {number} text */
  storedIds(text) {
    const ids = this.about.ids[text];
    if (!ids?.length) throw new Error(`The tokens of text ${text} are not in this file.`);
    return ids;
  }

  /** @param {number} text */
  async readStored(text) {
    const { model } = await this.ready();
    const reading = new Reading(model, this.storedIds(text), [], this.about.likeliest);
    await reading.run(pauseOf({ stopped: false }), () => {});
    this.readings.set(text, reading);
    this.meta.texts[text].layers.forEach((layer, n) => this.describe(layer, n, text, reading));
    return reading;
  }

  /**
   * The arrays of a block, which the model computes where the file does not hold them.
   * @param {string} name
   */
  async block(name) {
    if (!this.blocks[name] && !this.arrays.has(name)) await this.reading(Number(name.split("-")[1]));
    return super.block(name);
  }

  /** @type {SavedWeights["parts"]} */
  async parts(question) {
    const { text, quantity } = question;
    if (quantity.shade !== "weights" && !this.meta.texts[text].predicted?.positions) await this.reading(text);
    return super.parts(question);
  }

  /**
   * @param {ArrayLike<number>} ids
   * @param {Cut[]} cuts
   * @param {string} title
   * @param {Pause} pause
   * @param {Tell} tell
   * @returns {Promise<LiveText>}
   */
  async run(ids, cuts, title, pause, tell) {
    const { model, tokenizer } = await this.ready();
    const reading = new Reading(model, ids, cuts, this.about.likeliest);
    await reading.run(pause, tell);
    const number = this.meta.texts.length;
    this.readings.set(number, reading);
    const texts = tokenizer.texts(ids);
    /** @type {TextMeta} */
    const meta = {
      title,
      model: this.meta.model,
      tokens: texts,
      target_tokens: null,
      pictures: null,
      boundary: null,
      layers: this.about.layers.map((layer, n) => this.describe(layer, n, number, reading)),
      spans: { tokens: textUnits(texts) },
      shades: ["weights", "values", "logit"],
      predicted: {
        start: tellingPosition(reading.predictions.losses, texts),
        positions: null,
        tokens: null,
      },
      telling: null,
      missing: [],
      others: [],
      predictions: reading.predictions.summary(),
      edited: null,
      removed: false,
    };
    this.meta.texts.push(meta);
    for (const layer of meta.layers) layer.evidence = await this.evidence(number, layer, reading);
    const { layer, head } = this.meta.start ?? { layer: meta.layers[0].key, head: meta.layers[0].heads[0] };
    meta.telling = tellingQuery(await this.head({ text: number, layer, head }), texts);
    return { number, meta };
  }

  /**
   * A layer as it ran on a text; its arrays become blocks, as those of a file are.
   * @param {Layer} layer
   * @param {number} number of the layer
   * @param {number} text
   * @param {Reading} reading
   * @returns {Layer}
   */
  describe(layer, number, text, reading) {
    const [block, mask, values] = ["layer", "mask", "values"].map((kind) => `${kind}-${text}-${layer.key}`);
    this.arrays.set(block, Promise.resolve(reading.maps(number)));
    this.arrays.set(mask, Promise.resolve(reading.mask(number)));
    this.arrays.set(values, Promise.resolve({ v: reading.values(number) }));
    const size = reading.ids.length;
    return {
      ...layer,
      live: true,
      rows: size,
      cols: size,
      queries_from: 0,
      keys_from: 0,
      block,
      mask_block: mask,
      values_block: values,
    };
  }

  /**
   * @param {number} text
   * @param {Layer} layer
   * @param {Reading} reading
   */
  async evidence(text, layer, reading) {
    const heads = await Promise.all(
      layer.heads.map((head) => this.prepare({ text, layer: layer.key, head })),
    );
    const { v } = await this.block(layer.values_block ?? "");
    const { heads: cut } = reading.model.limits(layer.number, reading.cuts);
    return compareOutputs(heads, v, reading.records[layer.number].sampled, cut, layer.mask);
  }

  /**
   * The name of the block with the factors of a layer's keys, which is computed if the text was read here.
   * @type {SavedWeights["factorsBlock"]}
   */
  factorsBlock(text, layer, quantity) {
    const reading = this.readings.get(text);
    if (!reading) return super.factorsBlock(text, layer, quantity);
    const { number } = namedLayer(this.meta, text, layer);
    const { shade, position, token } = quantity;
    const name =
      shade === "values" ? `norms-${text}-${layer}` : `logit-${text}-${layer}-${position}-${token}`;
    const compute = async () => {
      const values = reading.values(number);
      if (shade === "values") return valueNorms(reading.model, number, values);
      const { directions } = await this.logitParts(
        text,
        position,
        reading.predictions.named(position, token),
      );
      return logitFactors(reading.model.config, values, directions[number]);
    };
    once(this.arrays, name, async () => ({ factors: withoutCutHeads(await compute(), reading, number) }));
    return name;
  }

  /**
   * @param {number} text
   * @param {number} position
   * @param {number} token
   */
  logitParts(text, position, token) {
    const key = `${text} ${position} ${token}`;
    return once(this.attributed, key, async () => attribute(await this.reading(text), position, token));
  }

  /**
   * Where the logit of a token after a position comes from.
   * @type {SavedWeights["attribution"]}
   */
  async attribution({ text, position, token: wanted }) {
    if (this.meta.texts[text].predicted?.positions)
      return super.attribution({ text, position, token: wanted });
    const { tokenizer } = await this.ready();
    const { predictions } = await this.reading(text);
    const id = predictions.named(position, wanted);
    const { logit, embedding, heads, mlps, rest } = await this.logitParts(text, position, id);
    const { likeliest } = await this.prediction({ text, position });
    const token = likeliest.find((one) => one.id === id) ?? {
      id,
      token: tokenizer.text(id),
      probability: null,
    };
    const { layers } = this.meta.texts[text];
    return {
      position,
      token,
      candidates: likeliest.some((one) => one.id === id) ? likeliest : [...likeliest, token],
      logit,
      embedding,
      heads: Object.fromEntries(layers.map(({ key }, n) => [key, heads[n]])),
      mlps: Object.fromEntries(layers.map(({ key }, n) => [key, mlps[n]])),
      rest,
    };
  }

  /**
   * Frees what a text took; its number is not used again.
   * @param {{ text: number }} question
   */
  async remove({ text }) {
    const { layers } = this.meta.texts[text];
    this.meta.texts[text] = { ...this.meta.texts[text], layers: [], edited: null, removed: true };
    this.readings.delete(text);
    for (const { key } of layers) {
      const own = new RegExp(`^(layer|mask|values|norms|logit)-${text}-${key}(-|$)`);
      for (const name of [...this.arrays.keys()]) if (own.test(name)) this.arrays.delete(name);
    }
    return this.meta.texts[text];
  }

  /** @type {SavedWeights["prediction"]} */
  async prediction({ text, position }) {
    if (this.blocks[`predictions-${text}`]) return super.prediction({ text, position });
    const { tokenizer } = await this.ready();
    const { predictions } = await this.reading(text);
    return describePrediction(
      predictions,
      (place) => ({ id: predictions.tokens[place], token: tokenizer.text(predictions.tokens[place]) }),
      this.meta.texts[text].tokens,
      position,
    );
  }

  /** @type {SavedWeights["thumbs"]} */
  async thumbs({ text, layer }, pause) {
    const { heads } = namedLayer(this.meta, text, layer);
    const all = await Promise.all(heads.map((head) => this.prepare({ text, layer, head })));
    return thumbnails(all, this.meta.thumb, pause);
  }

  /**
   * The scores of a layer's heads beside those of uniform attention. Labels need more than this page computes.
   * @type {SavedWeights["layerHeads"]}
   */
  async layerHeads({ text, layer }, pause) {
    const about = namedLayer(this.meta, text, layer);
    const ids = this.readings.get(text)?.ids ?? [];
    const rows = [];
    for (const [number, head] of about.heads.entries()) {
      const scored = await headScores(await this.prepare({ text, layer, head }), ids, pause);
      const kv_head = Math.floor(number / about.group);
      const sentence = describeScores(scored.scores, this.about);
      rows.push({ layer, head, kv_head, label: null, untested: true, sentence, ...scored });
    }
    return rows;
  }

  /**
   * @param {GenerateQuestion} question
   * @param {Pause} pause
   * @param {Tell} tell
   */
  async generate(question, pause, tell) {
    const { model, tokenizer } = await this.ready();
    const prompt = await this.encode(question.text);
    const most = this.about.config.context_length - 1;
    if (prompt.length > most)
      throw new Error(
        `The model can continue a prompt of at most ${most} tokens; this one has ${prompt.length}.`,
      );
    await generate(model, prompt, question, { pause, tell, texts: (ids) => tokenizer.texts(ids) });
    return true;
  }
}

/**
 * What keys add through each head, (H · S): nothing through heads that are cut.
 * @param {Float32Array} factors
 * @param {Reading} reading
 * @param {number} layer
 */
function withoutCutHeads(factors, { model, cuts }, layer) {
  const S = factors.length / model.config.num_heads;
  for (const head of model.limits(layer, cuts).heads)
    factors.fill(0, Number(head) * S, (Number(head) + 1) * S);
  return factors;
}
