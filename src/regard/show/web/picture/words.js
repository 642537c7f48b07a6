// @ts-check
// The words of a figure: the model, the text, the layer and head, and what that head does.

import { asSentence } from "../data/format.js";
import { textsName, layerOf } from "../data/layers.js";
import { scoreTitle } from "../data/score_words.js";

const PATIENCE = 3000; // milliseconds that a figure waits for a head's scores: those of a long text take minutes

/**
 * The words of a figure about one head.
 * @param {App} app
 * @param {HeadPlace} place
 * @returns {Promise<FigureWords>}
 */
export async function headWords(app, place) {
  const { meta } = app;
  const row = await scoresOf(app.source, place);
  const label = row?.label ? `, ${scoreTitle(row.label)}` : "";
  const { evidence } = layerOf(meta, place.text, place.layer);
  return {
    heading: `${modelOf(meta, place.text)}: layer ${place.layer}, head ${place.head}${label}`,
    lines: [textLine(app, place.text), row?.sentence ?? ""].filter(Boolean),
    notes: evidence.certified ? [asSentence(evidence.text)] : [],
    warning: evidence.certified ? "" : asSentence(evidence.text),
  };
}

/**
 * The words of a figure about a text as a whole.
 * @param {App} app
 * @param {string} title
 * @param {number} text
 * @returns {FigureWords}
 */
export function textWords(app, title, text) {
  const heading = `${modelOf(app.meta, text)}: ${title}`;
  return { heading, lines: [textLine(app, text)], notes: [], warning: "" };
}

/**
 * The words of a figure that is about no text.
 * @param {string} heading
 * @returns {FigureWords}
 */
export function titleOnly(heading) {
  return { heading, lines: [], notes: [], warning: "" };
}

/**
 * @param {Meta} meta
 * @param {number} text
 */
function modelOf(meta, text) {
  return meta.texts[text].model || "model";
}

/**
 * @param {App} app
 * @param {number} text
 */
function textLine(app, text) {
  const { edited } = app.meta.texts[text];
  const original = edited?.text ?? text;
  const run = edited ? ` ${app.runs.name(text)}.` : "";
  return `${textsName(app.meta)}: “${app.meta.texts[original].title}”.${run}`;
}

/**
 * The scores of a head; undefined if there are none soon.
 * @param {Source} source
 * @param {HeadPlace} place
 * @returns {Promise<HeadScores | undefined>}
 */
async function scoresOf(source, { text, layer, head }) {
  /** @type {Promise<HeadScores[]>} */
  const later = new Promise((done) => setTimeout(() => done([]), PATIENCE));
  const rows = await Promise.race([source.layerHeads(text, layer).catch(() => []), later]);
  return rows.find((row) => row.layer === layer && row.head === head);
}
