// @ts-check
// The page's numbers from the file itself: q, k and lse of every layer lie in it, packed. A worker answers what is asked.

import { unpackJson } from "./arithmetic/packed.js";
import { withModel } from "./live.js";
import { makeSource } from "./page_source.js";
import { RemoteWeights } from "./remote_weights.js";
import { openWorkerPort } from "./worker_port.js";

/**
 * Takes the text of a block out of the page: it is needed once only.
 * @param {string} name
 */
function takeBlock(name) {
  const element = document.getElementById(name);
  if (!element) throw new Error(`The file holds no block "${name}": it may have been cut short.`);
  const text = element.textContent.trim();
  element.textContent = "";
  return text;
}

const noModel = () => Promise.reject(new Error("This page has no model that could do that."));

/** @returns {Promise<Source>} */
export async function openSaved() {
  const opening = openWorkerPort(); // while the data is read
  /** @type {SavedData} */
  const data = await unpackJson(takeBlock("regard-data"));
  const weights = opening.then((port) => {
    if (port instanceof MessagePort) keepStored(data);
    return new RemoteWeights(port, data, takeBlock);
  });
  /** @type {RemoteWeights["ask"]} */
  const ask = async (name, question, signal, onLine) => (await weights).ask(name, question, signal, onLine);
  const jobs = { capture: noModel, cut: noModel, remove: noModel, generate: noModel };
  const source = makeSource(data.meta, 1, ask, jobs); // 1: there is one worker
  if (!data.model || (await opening) instanceof MessagePort) return source; // there is no worker
  return withModel(source, ask);
}

/**
 * Leaves out what only the model of a file computes: it runs in a worker, and there is none.
 * @param {SavedData} data
 */
function keepStored({ meta, blocks }) {
  for (const text of meta.texts) {
    const stored = text.layers.filter(({ block }) => blocks[block ?? ""]);
    if (stored.length === text.layers.length) continue;
    Object.assign(text, { layers: stored, removed: !stored.length, shades: ["weights"], predicted: null });
    for (const layer of stored) delete layer.values_block;
  }
}
