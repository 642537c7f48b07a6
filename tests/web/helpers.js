// What several tests use.

import assert from "node:assert/strict";
import { applySettings } from "../../src/regard/show/web/data/settings.js";

export const TILE = 256; // as Python has it
const measures = { secondary: ["sink", "local"], margin: 0.1, widening: 2, wide: 0.8, narrow: 0.4 };
applySettings({ tile: TILE, thumb: 64, scores: [], measures });

/**
 * Numbers from 0 to 1 that are the same at every run (mulberry32).
 * @param {number} seed
 */
export function numbers(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let t = Math.imul(state ^ (state >>> 15), 1 | state);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  };
}

/**
 * @param {number} actual
 * @param {number} expected
 * @param {number} tolerance
 */
export function near(actual, expected, tolerance) {
  assert.ok(Math.abs(actual - expected) <= tolerance, `${actual} is not within ${tolerance} of ${expected}`);
}

/**
 * The arrays of a head (see `HeadArrays`) with random queries and keys, each row's lse so that its visible
 * weights sum to 1.
 * @param {{ T?: number, S?: number, D?: number, seed?: number, visible?: (i: number) => number[][] }} options
 * @param {Partial<HeadArrays>} [parts]
 * @returns {HeadArrays}
 */
export function headArrays({ T = 8, S = T, D = 4, seed = 1, visible } = {}, parts = {}) {
  const random = numbers(seed);
  const causal = (/** @type {number} */ i) => [[0, i + 1 + S - T]];
  const list = Array.from({ length: T }, (_, i) => (visible ?? causal)(i));
  const offsets = [0];
  for (const ranges of list) offsets.push(offsets[offsets.length - 1] + ranges.length);
  /** @type {HeadArrays} */
  const head = {
    T,
    S,
    D,
    q: Float32Array.from({ length: T * D }, () => 2 * random() - 1),
    k: Float32Array.from({ length: S * D }, () => 2 * random() - 1),
    mean: new Float32Array(D),
    lse: new Float64Array(T),
    scale: 1 / Math.sqrt(D),
    softcap: null,
    offsets: Uint32Array.from(offsets),
    ranges: Uint32Array.from(list.flat(2)),
    relative: null,
    dense: null,
    ...parts,
  };
  head.lse = Float64Array.from({ length: T }, (_, i) => {
    const keys = list[i].flatMap(([from, to]) => Array.from({ length: to - from }, (_, n) => from + n));
    return Math.log(keys.reduce((sum, j) => sum + Math.exp(scoreOf(head, i, j)), 0));
  });
  return head;
}

/**
 * The score of a query and a key, straight from its definition.
 * @param {HeadArrays} head
 * @param {number} i
 * @param {number} j
 */
export function scoreOf({ q, k, T, S, D, scale, softcap, relative, dense }, i, j) {
  let dot = 0;
  for (let d = 0; d < D; d++) dot += q[i * D + d] * k[j * D + d];
  let score = dot * scale;
  if (softcap) score = softcap * Math.tanh(score / softcap);
  return score + (relative ? relative[j - i + T - 1] : dense ? dense[i * S + j] : 0);
}

/**
 * All weights of a head, straight from their definition: exp(score − lse) where it may look, else 0.
 * @param {HeadArrays} head
 * @returns {number[][]}
 */
export function weightsOf(head) {
  return Array.from({ length: head.T }, (_, i) => {
    const row = new Array(head.S).fill(0);
    for (let n = head.offsets[i]; n < head.offsets[i + 1]; n++) {
      for (let j = head.ranges[2 * n]; j < head.ranges[2 * n + 1]; j++) {
        row[j] = Math.exp(scoreOf(head, i, j) - head.lse[i]);
      }
    }
    return row;
  });
}

/**
 * Bytes in planes: all first bytes, then all second ones, as the Python side writes them.
 * @param {ArrayBufferView} array
 * @param {number} size bytes of a number
 * @param {number} skip lowest bytes that are left out
 */
export function planes(array, size, skip = 0) {
  const raw = new Uint8Array(array.buffer, array.byteOffset, array.byteLength);
  const count = raw.length / size;
  const out = [];
  for (let plane = skip; plane < size; plane++) {
    for (let i = 0; i < count; i++) out.push(raw[i * size + plane]);
  }
  return Uint8Array.from(out);
}
