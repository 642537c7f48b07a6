// @ts-check
// The page's numbers from the file itself: q, k and lse of every layer lie in it, packed. A worker computes, the rest is
// read here.

import { unpackJson } from "./arithmetic/packed.js";
import { SavedWeights } from "./arithmetic/saved_weights.js";
import { withModel } from "./live.js";
import { makeSource } from "./page_source.js";
import { RemoteWeights } from "./remote_weights.js";
import { openWorkerPort } from "./worker_port.js";

/** What lies in the file as it is: it need not wait for a worker that opens a model. */
const READ = /** @type {const} */ (["thumbs", "layerHeads", "prediction", "retained", "surveyHead"]);

/**
 * Takes the text of a block out of the page: it is needed once only, but for predictions, which the page shows and its
 * model compares with.
 * @param {string} name
 */
function takeBlock(name) {
  const element = document.getElementById(name);
  if (!element) throw new Error(`The file holds no block "${name}": it may have been cut short.`);
  const text = element.textContent.trim();
  if (!name.startsWith("predictions")) element.textContent = "";
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
  /** @type {any} */
  const file = new SavedWeights(data, async (name) => takeBlock(name));
  const stored = data.meta.texts.length; // texts of the file
  /** @type {(name: any, question: any, signal?: AbortSignal, onLine?: (line: any) => void) => Promise<any>} */
  const ask = async (name, question, signal, onLine) =>
    READ.includes(name) && !(question.text >= stored)
      ? file[name](question)
      : (await weights).ask(name, question, signal, onLine);
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
