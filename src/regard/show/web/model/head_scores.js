// @ts-check
// The scores of a head on a text and those of uniform attention, as `query_scores.py` defines them, and one sentence
// about the clearest of them, in the words of `head_sentence.py`. Each score is the mean over the queries for which it
// is defined, with a 95% interval over blocks of the text. Shuffled baselines and labels need the library.

import { settings } from "../data/settings.js";
import { sinkKey } from "./thumbnail.js";

/** @typedef {Record<string, number | null>} QueryScores null where a score is not defined */
/** @typedef {{ places: number[], earlier: number }} Copies */

// The two-sided 95% quantiles of Student's t distribution, by degrees of freedom from 1.
const STUDENTS_T = [
  12.71, 4.3, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.2, 2.18, 2.16, 2.14, 2.13, 2.12, 2.11, 2.1,
  2.09,
];

/** The mean of each score over the queries that have it, and its interval over blocks of the text. */
class Means {
  /** @param {number} T queries of the text */
  constructor(T) {
    this.T = T;
    this.blocks = Math.max(2, Math.min(STUDENTS_T.length + 1, Math.floor(T / 2)));
    /** @type {Record<string, { sum: number, count: number }[]>} */
    this.all = {};
  }

  /**
   * @param {number} query
   * @param {QueryScores} scores
   */
  add(query, scores) {
    const number = Math.floor((query * this.blocks) / this.T);
    for (const [name, value] of Object.entries(scores)) {
      if (value === null) continue;
      const block = ((this.all[name] ??= [])[number] ??= { sum: 0, count: 0 });
      block.sum += value;
      block.count++;
    }
  }

  /** @param {string} name */
  of(name) {
    const blocks = (this.all[name] ?? []).filter(Boolean);
    const [sum, count] = [total(blocks, (one) => one.sum), total(blocks, (one) => one.count)];
    return count ? { value: sum / count, blocks, count } : null;
  }

  /**
   * A score with its interval, which needs two blocks. All but the distance and the entropy are shares.
   * @param {string} name
   * @param {number | null} base that of uniform attention
   * @returns {Score}
   */
  score(name, base) {
    const mean = this.of(name);
    if (!mean || mean.blocks.length < 2) return { value: mean?.value ?? null, null: base };
    const { value, blocks, count } = mean;
    const spread = total(blocks, (one) => (one.sum - value * one.count) ** 2);
    const freedom = blocks.length - 1;
    const reach = (STUDENTS_T[freedom - 1] * Math.sqrt((spread * blocks.length) / freedom)) / count;
    const most = ["distance", "entropy"].includes(name) ? Infinity : Math.max(value, 1);
    return { value, null: base, low: Math.max(value - reach, 0), high: Math.min(value + reach, most) };
  }
}

/**
 * @template Item
 * @param {Item[]} items
 * @param {(item: Item) => number} number
 */
function total(items, number) {
  return items.reduce((sum, item) => sum + number(item), 0);
}

/**
 * @param {HeadMap} head
 * @param {ArrayLike<number>} ids of the text
 * @param {Pause} pause
 * @returns {Promise<{ scores: Record<string, Score>, sink_key: number | null }>}
 */
export async function headScores(head, ids, pause) {
  const copies = earlierCopies(ids);
  const [own, uniform] = [new Means(head.T), new Means(head.T)];
  const [received, evenly] = [new Float64Array(head.S), new Float64Array(head.S)];
  const seen = new Float64Array(head.S);
  let active = 0;
  const [line, even] = [new Float64Array(head.S), new Float64Array(head.S)];
  for (let query = 0; query < head.T; query++) {
    line.fill(0);
    even.fill(0);
    let keys = 0;
    head.stretches(query, 0, head.S, (from, to) => (keys += to - from));
    head.visible(query, 0, head.S, (key, weight) => {
      line[key] = weight;
      even[key] = 1 / keys;
      received[key] += weight;
      evenly[key] += 1 / keys;
      seen[key] += 1;
    });
    if (keys) {
      active++;
      const nulls = queryScores(even, query, keys, copies[query], null);
      uniform.add(query, nulls);
      own.add(query, queryScores(line, query, keys, copies[query], nulls));
    }
    await pause();
  }
  const sink = sinkKey(received, seen, active);
  const evenSink = sinkKey(evenly, seen, active);
  /** @type {Record<string, Score>} */
  const scores = {};
  for (const name of Object.keys(own.all)) scores[name] = own.score(name, uniform.of(name)?.value ?? null);
  if (sink.share) scores.sink = { value: sink.share, null: evenSink.share };
  return { scores, sink_key: sink.share ? sink.key : null };
}

/**
 * The scores of one query. Where uniform attention has no mass, a score of copies or of eviction is not defined.
 * @param {Float64Array} line its weights
 * @param {number} query
 * @param {number} keys that it sees
 * @param {Copies} copies of its token
 * @param {QueryScores | null} nulls the scores of uniform attention; null while these are computed
 * @returns {QueryScores}
 */
function queryScores(line, query, keys, copies, nulls) {
  const { near, policy } = settings.measures;
  let [entropy, distance, total, local, evicted] = [0, 0, 0, 0, 0];
  for (let key = 0; key <= query; key++) {
    const weight = line[key];
    if (!weight) continue;
    entropy -= weight * Math.log(weight);
    distance += weight * (query - key);
    total += weight;
    if (query - key < near) local += weight;
    if (key >= policy.first && query - key >= policy.latest) evicted += weight;
  }
  let [duplicate, induction] = [0, 0];
  for (let n = 0; n < copies.earlier; n++) {
    const key = copies.places[n];
    duplicate += line[key];
    if (key + 1 < query) induction += line[key + 1];
  }
  const where = (/** @type {string} */ name, /** @type {number} */ value) =>
    (nulls ? nulls[name] !== null : value > 0) ? value : null;
  return {
    previous_token: query > 0 ? line[query - 1] : null,
    itself: line[query],
    duplicate: where("duplicate", duplicate),
    induction: where("induction", induction),
    local,
    eviction: where("eviction", evicted),
    distance: distance / (total || 1),
    entropy,
    normalised_entropy: keys > 1 ? entropy / Math.log(keys) : null,
  };
}

/**
 * The places of all tokens with the same id, and how many of them are earlier, for each token.
 * @param {ArrayLike<number>} ids
 * @returns {Copies[]}
 */
function earlierCopies(ids) {
  /** @type {Map<number, number[]>} */
  const all = new Map();
  return Array.from(ids, (id, place) => {
    const places = all.get(id) ?? [];
    all.set(id, places);
    return { places, earlier: places.push(place) - 1 };
  });
}

/**
 * @param {Record<string, Score>} scores
 * @param {{ targets: Record<string, string>, min_scores: Record<string, number> }} words where the attention of a score
 *   goes, and the least that its label needs
 */
export function describeScores(scores, { targets, min_scores }) {
  const { wide, narrow, secondary, margin, widening } = settings.measures;
  const entropy = scores.normalised_entropy?.value ?? null;
  if (entropy !== null && entropy >= wide)
    return entropySentence("it spreads its attention almost evenly over the tokens that it sees", entropy);
  const clearest = Object.keys(targets)
    .flatMap((name) => {
      const { value, null: base } = scores[name] ?? { value: null };
      if (value === null || base === null || base === undefined) return [];
      const above = (value - base) * (secondary.includes(name) ? 0.5 : 1);
      return [{ name, value, base, above }];
    })
    .sort((a, b) => b.above - a.above)[0];
  if (clearest && clearest.above > 0) {
    const { name, value, base } = clearest;
    const { low, high } = scores[name];
    const unsure = value >= min_scores[name] && value - widening * (value - (low ?? value)) < base + margin;
    const interval = unsure ? ` (95% interval ${Math.round(100 * (low ?? 0))}–${percentage(high ?? 1)})` : "";
    let beginning = "It";
    if (value < base + margin) beginning = "Nothing stands out: it";
    else if (value < min_scores[name]) beginning = "Not clear enough for a label: it";
    else if (unsure) beginning = "Too few tokens to be sure: it";
    return (
      `${beginning} puts ${percentage(value)}${interval} of its attention ${targets[name]}; ` +
      `uniform attention would put ${percentage(base)} there.`
    );
  }
  if (entropy === null) return "Nothing stands out: no score is above that of uniform attention.";
  const where = entropy <= narrow ? "few tokens at a time" : "some tokens more than on others";
  return entropySentence(`its attention is on ${where}`, entropy);
}

/**
 * @param {string} beginning
 * @param {number} entropy
 */
function entropySentence(beginning, entropy) {
  return `Nothing stands out: ${beginning}; its entropy is ${percentage(entropy)} of that of uniform attention.`;
}

/**
 * A share as a whole percentage that never claims nothing or everything by rounding.
 * @param {number} share
 */
function percentage(share) {
  if (share > 0 && share < 0.005) return "less than 1%";
  if (share >= 0.995 && share < 1) return "more than 99%";
  return `${Math.round(100 * share)}%`;
}
