// @ts-check
// The page's questions, whoever answers them. The latest answers are kept; an answer that failed is asked for again. It
// knows what can be asked, not how that is sent.

import { LRU } from "../data/lru.js";
import { PLAIN } from "../data/quantity.js";

const KEPT = 192; // answers

/**
 * A source without the model's work, which `jobs` adds.
 * @param {Meta} meta
 * @param {number} atOnce tiles that it likes to have asked for at a time
 * @param {AskPage} ask
 * @param {Pick<Source, "capture" | "cut" | "remove" | "generate">} jobs
 * @returns {Source}
 */
export function makeSource(meta, atOnce, ask, jobs) {
  /** @type {LRU<any>} */
  const kept = new LRU(KEPT);
  /** @type {Map<string, Promise<any>>} */
  const asked = new Map(); // that have no answer yet
  /** @type {AskPage} */
  const answer = async (name, question, signal) => {
    const key = JSON.stringify([name, question]);
    const known = kept.get(key);
    if (known !== undefined) return known;
    // Two who want the same at a time wait for one answer, unless one of them may leave.
    const making = (!signal && asked.get(key)) || ask(name, question, signal);
    if (!signal) asked.set(key, making);
    try {
      const made = await making;
      kept.set(key, made);
      return made;
    } finally {
      asked.delete(key);
    }
  };
  return {
    meta,
    atOnce,
    thumbs: (text, layer) => answer("thumbs", { text, layer }),
    tile: (question, signal) => answer("tile", question, signal),
    row: (text, layer, head, index, quantity = PLAIN) =>
      answer("row", { text, layer, head, index, quantity }),
    column: (text, layer, head, index, quantity = PLAIN) =>
      answer("column", { text, layer, head, index, quantity }),
    attribution: (text, position, token) => answer("attribution", { text, position, token }),
    layerHeads: (text, layer) => answer("layerHeads", { text, layer }),
    steps: (text, layer, head, row) => answer("steps", { text, layer, head, row }),
    retained: (text, layer) => answer("retained", { text, layer }),
    prediction: (text, position) => answer("prediction", { text, position }),
    surveyHead: (layer, head) => answer("surveyHead", { layer, head }),
    ...jobs,
  };
}
