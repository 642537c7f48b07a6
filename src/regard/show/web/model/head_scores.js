// @ts-check
// The scores of a head on a text and those of uniform attention, as `heads/query_scores.py` defines them, and one sentence
// about the clearest of them, in the words of `heads/head_sentence.py`. Each score is the mean over the queries for which it
// is defined. Intervals, shuffled baselines and labels need the library.

import { sinkKey } from "./thumbnail.js";

const NEAR = 8; // tokens that count as local, the query's own among them
const POLICY = { sinks: 4, window: 64 }; // of the eviction score

/** @typedef {Record<string, number | null>} QueryScores null where a score is not defined */
/** @typedef {{ places: number[], earlier: number }} Copies */

/** The mean of each score over the queries that have it. */
class Means {
  constructor() {
    /** @type {Record<string, { sum: number, count: number }>} */
    this.all = {};
  }

  /** @param {QueryScores} scores */
  add(scores) {
    for (const [name, value] of Object.entries(scores)) {
      if (value === null) continue;
      this.all[name] ??= { sum: 0, count: 0 };
      this.all[name].sum += value;
      this.all[name].count++;
    }
  }

  /** @param {string} name */
  of(name) {
    const one = this.all[name];
    return one ? one.sum / one.count : null;
  }
}

/**
 * @param {HeadMap} head
 * @param {ArrayLike<number>} ids of the text
 * @param {Pause} pause
 * @returns {Promise<{ scores: Record<string, Score>, sink_key: number | null }>}
 */
export async function headScores(head, ids, pause) {
  const copies = earlierCopies(ids);
  const [own, uniform] = [new Means(), new Means()];
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
      uniform.add(nulls);
      own.add(queryScores(line, query, keys, copies[query], nulls));
    }
    await pause();
  }
  const sink = sinkKey(received, seen, active);
  const evenSink = sinkKey(evenly, seen, active);
  /** @type {Record<string, Score>} */
  const scores = {};
  for (const name of Object.keys(own.all)) scores[name] = { value: own.of(name), null: uniform.of(name) };
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
  let [entropy, distance, total, local, evicted] = [0, 0, 0, 0, 0];
  for (let key = 0; key <= query; key++) {
    const weight = line[key];
    if (!weight) continue;
    entropy -= weight * Math.log(weight);
    distance += weight * (query - key);
    total += weight;
    if (query - key < NEAR) local += weight;
    if (key >= POLICY.sinks && query - key >= POLICY.window) evicted += weight;
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

const [WIDE, NARROW] = [0.8, 0.4]; // normalised entropy from which, and up to which, it is worth a sentence
const SECONDARY = ["sink", "local"]; // many heads have them beside their main function

/**
 * @param {Record<string, Score>} scores
 * @param {Record<string, string>} targets where the attention of a score goes, in words
 */
export function describeScores(scores, targets) {
  const entropy = scores.normalised_entropy?.value ?? null;
  if (entropy !== null && entropy >= WIDE)
    return entropySentence("It spreads its attention almost evenly over the tokens that it sees", entropy);
  const clearest = Object.keys(targets)
    .flatMap((name) => {
      const { value, null: base } = scores[name] ?? { value: null };
      if (value === null || base === null || base === undefined) return [];
      const above = (value - base) * (SECONDARY.includes(name) ? 0.5 : 1);
      return [{ name, value, base, above }];
    })
    .sort((a, b) => b.above - a.above)[0];
  if (clearest && clearest.above > 0)
    return (
      `It puts ${percentage(clearest.value)} of its attention ${targets[clearest.name]}; ` +
      `uniform attention would put ${percentage(clearest.base)} there.`
    );
  if (entropy === null) return "No score is above that of uniform attention.";
  const where = entropy <= NARROW ? "few tokens at a time" : "some tokens more than on others";
  return entropySentence(`Its attention is on ${where}`, entropy);
}

/**
 * @param {string} beginning
 * @param {number} entropy
 */
function entropySentence(beginning, entropy) {
  return `${beginning}: its entropy is ${percentage(entropy)} of that of uniform attention.`;
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
