// The page's numbers from the server that it came from, with what was asked lately kept at hand.

import { LRU } from "../common/lru.js";
import { cellsAlong } from "../common/tile.js";

const KEPT = 96; // answers

/** `fetch`, with a sentence for a server that is gone. */
async function reach(path, options) {
  try {
    return await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The server does not answer any more. Start it again, and reload this page.");
  }
}

/** An answer from the server, or an error with the server's own sentence. */
async function ask(path, query, signal) {
  const response = await reach(`api/${path}?${new URLSearchParams(query)}`, { signal });
  if (!response.ok) throw new Error(await problem(response));
  return response;
}

async function problem(response) {
  const text = await response.text();
  try {
    return JSON.parse(text).error ?? text;
  } catch {
    return text || `The server answered ${response.status}.`;
  }
}

/** Lines of JSON as they come. */
async function follow(path, body, onLine, signal) {
  const response = await reach(`api/${path}`, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(body),
    signal,
  });
  if (!response.ok) throw new Error(await problem(response));
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let last = null;
  for (;;) {
    const { value, done } = await reader.read();
    const lines = (rest + (value ?? "")).split("\n");
    rest = done ? "" : lines.pop();
    for (const line of lines) {
      if (!line.trim()) continue;
      last = JSON.parse(line);
      if (last.error) throw new Error(last.error);
      onLine?.(last);
    }
    if (done) return last;
  }
}

export async function openServed() {
  const kept = new LRU(KEPT);
  /** What was asked before, or what `make` gives; an answer that failed is asked for again. */
  const once = async (key, make) => {
    const known = kept.get(key);
    if (known !== undefined) return known;
    const made = await make();
    kept.set(key, made);
    return made;
  };
  const floats = async (path, query, signal) =>
    new Float32Array(await (await ask(path, query, signal)).arrayBuffer());

  const source = {
    atOnce: 4, // questions that it likes to have at a time
    meta: await (await ask("meta", {})).json(),
    thumbs: (text, layer) =>
      once(`thumbs ${text} ${layer}`, async () => {
        const both = ["thumbs", "sinks"].map((path) => ask(path, { text, layer }));
        const [pictures, sinks] = await Promise.all(both);
        return { pictures: new Uint8Array(await pictures.arrayBuffer()), sinks: await sinks.json() };
      }),
    tile: (text, layer, head, z, i, j, { without = null, signal } = {}) =>
      once(`tile ${text} ${layer} ${head} ${z} ${i} ${j} ${without}`, async () => {
        const query = { text, layer, head, z, i, j };
        if (without !== null) query.without = without;
        const both = await floats("tile", query, signal);
        const { rows: T, cols: S } = source.meta.texts[text].layers.find((one) => one.key === layer);
        const [rows, cols] = [cellsAlong(T, z, i), cellsAlong(S, z, j)];
        return { mass: both.subarray(0, rows * cols), max: both.subarray(rows * cols), rows, cols };
      }),
    row: (text, layer, head, row) =>
      once(`row ${text} ${layer} ${head} ${row}`, () => floats("row", { text, layer, head, row })),
    column: (text, layer, head, col) =>
      once(`column ${text} ${layer} ${head} ${col}`, () => floats("column", { text, layer, head, col })),
    heads: (text) => once(`heads ${text}`, async () => (await ask("heads", { text })).json()),
    steps: (text, layer, head, row) =>
      once(`steps ${text} ${layer} ${head} ${row}`, async () =>
        (await ask("steps", { text, layer, head, row })).json(),
      ),
    eviction: (text, layer) =>
      once(`eviction ${text} ${layer}`, async () => (await ask("eviction", { text, layer })).json()),
    async capture(text, onProgress, signal) {
      const last = await follow("capture", { text }, onProgress, signal);
      source.meta = await (await ask("meta", {})).json();
      return last.text;
    },
    generate: (options, onStep, signal) => follow("generate", options, onStep, signal),
  };
  return source;
}
