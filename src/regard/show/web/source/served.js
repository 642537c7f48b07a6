// @ts-check
// The page's numbers from the server that it came from, with what was asked lately kept at hand.

import { layerOf } from "../common/layers.js";
import { LRU } from "../common/lru.js";
import { PLAIN, quantityName } from "../common/quantity.js";
import { cellsAlong } from "../common/tile.js";
import { inUnits } from "../common/units.js";
import { takeToken } from "./token.js";

const KEPT = 96; // answers
let token = "";

/**
 * `fetch` with the server's token, and a sentence for a server that is gone.
 * @param {string} path
 * @param {{ method?: string, headers?: Record<string, string>, body?: string, signal?: AbortSignal }} options
 */
async function reach(path, options) {
  try {
    return await fetch(path, {
      ...options,
      headers: { ...options.headers, authorization: `Bearer ${token}` },
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The server does not answer any more. Start it again, and reload this page.");
  }
}

/** @param {Record<string, string | number>} query */
function queryString(query) {
  return new URLSearchParams(Object.entries(query).map(([name, value]) => [name, String(value)]));
}

/**
 * The likeliest token need not be named.
 * @param {number} position
 * @param {number} token
 * @returns {Record<string, number>}
 */
function logitQuery(position, token) {
  return token < 0 ? { position } : { position, token };
}

/**
 * What a question says of its quantity, where that is not the weights of tokens.
 * @param {Quantity} quantity
 */
function quantityQuery({ shade, units, unitsOf, position, token }) {
  /** @type {Record<string, string | number>} */
  const query = {};
  if (shade !== PLAIN.shade) query.shade = shade;
  if (shade === "logit") Object.assign(query, logitQuery(position, token));
  if (units !== PLAIN.units) Object.assign(query, { units, units_of: unitsOf });
  return query;
}

/**
 * An answer from the server, or an error with the server's own sentence.
 * @param {string} path
 * @param {Record<string, string | number>} query
 * @param {AbortSignal} [signal]
 */
async function ask(path, query, signal) {
  const response = await reach(`api/${path}?${queryString(query)}`, { signal });
  if (!response.ok) throw new Error(await problem(response));
  return response;
}

/**
 * @param {Response} response
 * @returns {Promise<string>}
 */
async function problem(response) {
  const text = await response.text();
  try {
    return JSON.parse(text).error ?? text;
  } catch {
    return text || `The server answered ${response.status}.`;
  }
}

/**
 * Lines of JSON as they come.
 * @template T
 * @param {string} path
 * @param {object} body
 * @param {(line: T) => void} onLine
 * @param {AbortSignal} [signal]
 * @returns {Promise<T | null>}
 */
async function follow(path, body, onLine, signal) {
  const response = await reach(`api/${path}`, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(body),
    signal,
  });
  if (!response.ok || !response.body) throw new Error(await problem(response));
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  /** @type {T | null} */
  let last = null;
  for (;;) {
    const { value, done } = await reader.read();
    const lines = (rest + (value ?? "")).split("\n");
    rest = done ? "" : (lines.pop() ?? "");
    for (const line of lines) {
      if (!line.trim()) continue;
      const parsed = JSON.parse(line);
      if (parsed.error) throw new Error(parsed.error);
      onLine(parsed);
      last = parsed;
    }
    if (done) return last;
  }
}

/** @returns {Promise<Source>} */
export async function openServed() {
  token = takeToken();
  /** @type {LRU<any>} */
  const kept = new LRU(KEPT);
  /**
   * What was asked before, or what `make` gives; an answer that failed is asked for again.
   * @template T
   * @param {string} key
   * @param {() => Promise<T>} make
   * @returns {Promise<T>}
   */
  const once = async (key, make) => {
    const known = kept.get(key);
    if (known !== undefined) return known;
    const made = await make();
    kept.set(key, made);
    return made;
  };
  /**
   * @param {string} path
   * @param {Record<string, string | number>} query
   * @param {AbortSignal} [signal]
   */
  const floats = async (path, query, signal) =>
    new Float32Array(await (await ask(path, query, signal)).arrayBuffer());

  /** @type {Source} */
  const source = {
    atOnce: 4, // questions that it likes to have at a time
    meta: await (await ask("meta", {})).json(),
    thumbs: (text, layer) =>
      once(`thumbs ${text} ${layer}`, async () => {
        const both = ["thumbs", "sinks"].map((path) => ask(path, { text, layer }));
        const [pictures, sinks] = await Promise.all(both);
        return { pictures: new Uint8Array(await pictures.arrayBuffer()), sinks: await sinks.json() };
      }),
    tile: (text, layer, head, z, i, j, { without = null, quantity = PLAIN, signal } = {}) =>
      once(`tile ${text} ${layer} ${head} ${z} ${i} ${j} ${without} ${quantityName(quantity)}`, async () => {
        /** @type {Record<string, string | number>} */
        const query = { text, layer, head, z, i, j, ...quantityQuery(quantity) };
        if (without !== null) query.without = without;
        const both = await floats("tile", query, signal);
        const { rows: T, cols: S } = inUnits(source.meta, layerOf(source.meta, text, layer), quantity);
        const [rows, cols] = [cellsAlong(T, z, i), cellsAlong(S, z, j)];
        return { mass: both.subarray(0, rows * cols), max: both.subarray(rows * cols), rows, cols };
      }),
    row: (text, layer, head, row, quantity = PLAIN) =>
      once(`row ${text} ${layer} ${head} ${row} ${quantityName(quantity)}`, () =>
        floats("row", { text, layer, head, row, ...quantityQuery(quantity) }),
      ),
    column: (text, layer, head, col, quantity = PLAIN) =>
      once(`column ${text} ${layer} ${head} ${col} ${quantityName(quantity)}`, () =>
        floats("column", { text, layer, head, col, ...quantityQuery(quantity) }),
      ),
    attribution: (text, position, token) =>
      once(`attribution ${text} ${position} ${token}`, async () =>
        (await ask("attribution", { text, ...logitQuery(position, token) })).json(),
      ),
    heads: (text) => once(`heads ${text}`, async () => (await ask("heads", { text })).json()),
    steps: (text, layer, head, row) =>
      once(`steps ${text} ${layer} ${head} ${row}`, async () =>
        (await ask("steps", { text, layer, head, row })).json(),
      ),
    eviction: (text, layer) =>
      once(`eviction ${text} ${layer}`, async () => (await ask("eviction", { text, layer })).json()),
    prediction: (text, position) =>
      once(`prediction ${text} ${position}`, async () =>
        (await ask("prediction", { text, position })).json(),
      ),
    async capture(text, onLine, signal) {
      const last = await follow("capture", { text }, onLine, signal);
      source.meta = await (await ask("meta", {})).json();
      return last?.text ?? 0;
    },
    async cut(text, cuts, onLine, signal) {
      const last = await follow("cut", { text, cuts }, onLine, signal);
      source.meta = await (await ask("meta", {})).json();
      return last?.text ?? text;
    },
    async undo(text) {
      await follow("undo", { text }, () => {});
      source.meta = await (await ask("meta", {})).json();
    },
    async generate(options, onLine, signal) {
      await follow("generate", options, onLine, signal);
    },
  };
  return source;
}
