// Runs the model of the page as Python asks it to: one JSON object on stdin, one on stdout.
// `tests/show/saved/test_model_block.py` compares the answers with the library's.

import { readFileSync } from "node:fs";
import { PLAIN } from "../../src/regard/show/web/data/quantity.js";
import { applySettings } from "../../src/regard/show/web/data/settings.js";
import { Cache, LanguageModel } from "../../src/regard/show/web/model/forward.js";
import { LiveWeights } from "../../src/regard/show/web/model/live_weights.js";
import { Tokenizer } from "../../src/regard/show/web/model/tokens/tokenizer.js";
import { textUnits } from "../../src/regard/show/web/model/tokens/units.js";
import { arrangeWeights } from "../../src/regard/show/web/model/weights.js";
import { unpackArrays, unpackJson } from "../../src/regard/show/web/source/arithmetic/packed.js";

const pause = async () => {};

/** What every question is answered with. */
const ANSWERS = {
  /** The ids of texts, and the texts of all tokens. */
  async tokens({ blocks, texts }) {
    const tokenizer = new Tokenizer(await unpackJson(blocks["model-tokenizer"]));
    const size = tokenizer.data.pieces.length;
    return {
      ids: texts.map((text) => tokenizer.encode(text)),
      tokens: texts.map((text) => tokenizer.texts(tokenizer.encode(text))),
      units: texts.map((text) => textUnits(tokenizer.texts(tokenizer.encode(text)))),
      words: Array.from({ length: size }, (_, id) => tokenizer.text(id)),
    };
  },

  /** What a page with these blocks shows of a text that it reads, and of the same with something cut. */
  async page({ blocks, text, cuts, rows }) {
    const data = await unpackJson(blocks["regard-data"]);
    applySettings(data.meta);
    const weights = new LiveWeights(data, async (name) => blocks[name]);
    const lines = [];
    const read = await weights.read({ text, first: null, continuation: [] }, pause, (line) =>
      lines.push(line),
    );
    const cut = await weights.cut({ text: read.number, cuts }, pause, () => {});
    const shown = async ({ number, meta }) => ({
      meta,
      heads: (
        await Promise.all(
          meta.layers.map(({ key }) => weights.layerHeads({ text: number, layer: key }, pause)),
        )
      ).flat(),
      thumbs: await Promise.all(
        meta.layers.map(async ({ key }) => {
          const { pictures, sinks } = await weights.thumbs({ text: number, layer: key }, pause);
          return { pictures: Array.from(pictures), sinks };
        }),
      ),
      weights: await Promise.all(
        rows.map(async ({ layer, head, row }) =>
          Array.from(await weights.row({ text: number, layer, head, index: row, quantity: PLAIN }, pause)),
        ),
      ),
      attribution: await weights.attribution({ text: number, position: rows[0].row, token: -1 }),
      factors: Object.fromEntries(
        await Promise.all(
          ["values", "logit"].map(async (shade) => {
            const quantity = { ...PLAIN, shade, position: rows[0].row, token: -1 };
            const { layer, head, row } = rows[0];
            const line = await weights.row({ text: number, layer, head, index: row, quantity }, pause);
            return [shade, Array.from(line)];
          }),
        ),
      ),
      steps: await weights.steps({ text: number, ...rows[0] }),
      predictions: await Promise.all(
        meta.tokens.map((_, position) => weights.prediction({ text: number, position })),
      ),
    });
    return { read: await shown(read), cut: await shown(cut), lines };
  },

  /** Rows of the first text of a file, and where a logit comes from: the model reads what the file leaves out. */
  async stored({ blocks, rows, position }) {
    const data = await unpackJson(blocks["regard-data"]);
    applySettings(data.meta);
    const weights = new LiveWeights(data, async (name) => blocks[name]);
    return {
      weights: await Promise.all(
        rows.map(async ({ layer, head, row }) =>
          Array.from(await weights.row({ text: 0, layer, head, index: row, quantity: PLAIN }, pause)),
        ),
      ),
      attribution: await weights.attribution({ text: 0, position, token: -1 }),
    };
  },

  /** The lines of a generation. */
  async generation({ blocks, options }) {
    const data = await unpackJson(blocks["regard-data"]);
    const lines = [];
    const weights = new LiveWeights(data, async (name) => blocks[name]);
    await weights.generate(options, pause, (line) => lines.push(line));
    return lines;
  },

  /** For each list of cuts the logits of all positions: of the tokens at once, or in pieces through the cache. */
  async logits({ blocks, description: { config, tensors }, ids, cuts, pieces }) {
    const arrays = await unpackArrays("model-weights", blocks["model-weights"], tensors);
    const model = new LanguageModel(config, arrangeWeights(config, arrays));
    const step = config.vocab_size;
    const answers = [];
    for (const list of cuts) {
      const cache = new Cache(config, ids.length);
      const logits = { data: new Float64Array(ids.length * step), at: 0, step };
      for (const length of pieces) {
        const first = cache.length;
        const states = await model.states(ids.slice(first, first + length), cache, { cuts: list });
        model.logits(states, 0, length, { ...logits, at: first * step });
      }
      answers.push(Array.from(logits.data));
    }
    return answers;
  },
};

const questions = JSON.parse(readFileSync(0, "utf-8"));
const answers = [];
for (const { name, ...question } of questions) answers.push(await ANSWERS[name](question));
process.stdout.write(JSON.stringify(answers));
