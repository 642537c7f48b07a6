// @ts-check
// What the model gives a token with the heads that look it up cut, and with as many random heads cut instead:
// recorded in the file, or run here where there is a model.

import { drawOthers } from "../data/random_heads.js";

const RANDOM_SETS = 2;
export const LOOKS_UP = "induction"; // the label of heads that find what came after earlier copies of a token

/**
 * The heads of the first text with that label; the head that the page opens on if there are none.
 * @param {App} app
 */
async function lookupHeads({ meta, headRows }) {
  const { layers } = meta.texts[0];
  const rows = (await Promise.all(layers.map(({ key }) => headRows.layer(0, key)))).flat();
  const found = rows.filter(({ label }) => label === LOOKS_UP);
  return found.length ? found.map(({ layer, head }) => ({ layer, head })) : meta.start ? [meta.start] : [];
}

/**
 * The probability of a token in a prediction; null if it is not among those that are known.
 * @param {Prediction} prediction
 * @param {{ id: number, token: string }} token
 */
export function probabilityOf({ likeliest, next }, { id, token }) {
  const listed = likeliest.find((one) => one.id === id)?.probability;
  return listed ?? (next?.token === token ? next.probability : null);
}

/**
 * Turns the lookup off; `tell` is called with each result as it comes.
 * @param {App} app
 * @param {number} text
 * @param {number} position
 * @param {{ id: number, token: string }} token
 * @param {(lookup: Lookup) => void} tell
 * @param {AbortSignal} signal
 */
export async function turnOff(app, text, position, token, tell, signal) {
  const recorded = recordedLookup(app.meta, text, position);
  if (recorded) return tell(recorded);
  const heads = await lookupHeads(app);
  const without = async (/** @type {HeadOfLayer[]} */ cut) => {
    const cuts = cut.map((one) => /** @type {Cut} */ ({ kind: "head", ...one }));
    const run = await app.source.cut(text, cuts, () => {}, signal, false);
    const probability = probabilityOf(await app.source.prediction(run, position), token);
    await app.source.remove(run);
    return probability;
  };
  /** @type {Lookup} */
  const lookup = { position, heads, off: await without(heads), random: [] };
  tell(lookup);
  while (lookup.random.length < RANDOM_SETS) {
    lookup.random.push(await without(drawOthers(app.meta.texts[text].layers, heads)));
    tell(lookup);
  }
}

/**
 * What the file has recorded of a position, or null.
 * @param {Meta} meta
 * @param {number} text
 * @param {number} position
 */
export function recordedLookup({ lookup }, text, position) {
  return lookup && text === 0 && lookup.position === position ? lookup : null;
}
