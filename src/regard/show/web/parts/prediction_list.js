// @ts-check
// Next-token predictions as a list with small bars, and in a sentence: of one run, or of two side by side.

import { count, number, percent } from "../data/format.js";
import { isolated, short, visible } from "../data/tokens.js";
import { element } from "./dom.js";

const BYTES = /<0x[0-9A-F]{2}>/; // a piece of a character that stands alone

/**
 * The likeliest next tokens, likeliest first; the one that follows in the text is marked.
 * @param {Prediction} prediction
 * @param {string} label
 */
export function predictionList({ likeliest, next }, label) {
  const items = likeliest.map(({ token: word, probability }, n) => {
    const follows = next?.rank === n + 1 && (next.token === word || BYTES.test(word));
    const token = follows && next?.token ? next.token : word;
    return element(
      "li",
      { class: follows ? "follows" : "", title: visible(token.slice(0, 200)), "--share": probability },
      element("span.token", short(token, 14)),
      element("span.weight", percent(probability)),
      follows ? element("span.unseen-words", "follows in the text") : null,
    );
  });
  return element("ol.likeliest", { "aria-label": label }, ...items);
}

/**
 * What the text has next, and what the model gave it: "In the text follows “cat”: 4.2%, rank 6, loss 3.17"; of an edited
 * run also what it gave before: "In the text follows “cat”: 4.2% (rank 6) → 0.3% (rank 41)".
 * @param {Prediction} prediction
 * @param {Prediction} [before] of the model's own run
 */
export function nextSentence({ next }, before) {
  const earlier = before?.next;
  if (!next || earlier === null) return "Nothing follows in the text.";
  const token = next.token === null ? "a token" : `“${isolated(short(next.token, 24))}”`;
  const [share, rank] = [percent(next.probability), `rank ${count(next.rank)}`];
  const found = earlier
    ? `${percent(earlier.probability)} (rank ${count(earlier.rank)}) → ${share} (${rank})`
    : `${share}, ${next.rank === 1 ? "the likeliest" : rank}, loss ${number(next.loss, 2)}`;
  return `In the text follows ${token}: ${found}.`;
}

/**
 * The lists of likely tokens for a run, and the sentence about the token that follows.
 * @param {App} app
 * @param {number} text
 * @param {number} position
 * @returns {Promise<{ lists: HTMLElement, sentence: string }>}
 */
export async function likelyTokens(app, text, position) {
  const own = app.meta.texts[text].edited?.text ?? null;
  const after = await app.source.prediction(text, position);
  if (own === null) {
    const lists = element("div.likely-lists", predictionList(after, "Likeliest next tokens"));
    return { lists, sentence: nextSentence(after) };
  }
  const before = await app.source.prediction(own, position);
  const lists = element(
    "div.likely-lists",
    titled("The model’s own run", predictionList(before, "Likeliest next tokens of the model’s own run")),
    titled("Edited run", predictionList(after, "Likeliest next tokens of the edited run"), "edited"),
  );
  return { lists, sentence: nextSentence(after, before) };
}

/**
 * @param {string} title
 * @param {HTMLElement} list
 */
function titled(title, list, kind = "") {
  return element("div", { class: `likely ${kind}` }, element("h4", title), list);
}
