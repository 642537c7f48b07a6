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
  const list = element("ol", { class: "likeliest", "aria-label": label });
  likeliest.forEach(({ token: word, probability }, n) => {
    const follows = next?.rank === n + 1 && (next.token === word || BYTES.test(word));
    const token = follows && next?.token ? next.token : word;
    const item = element(
      "li",
      { class: follows ? "follows" : "", title: visible(token.slice(0, 200)) },
      element("span", { class: "token", text: short(token, 14) }),
      element("span", { class: "weight", text: percent(probability) }),
    );
    item.style.setProperty("--share", String(probability));
    if (follows) item.append(element("span", { class: "unseen-words", text: "follows in the text" }));
    list.append(item);
  });
  return list;
}

/**
 * What the text has next, and what the model gave it: "In the text follows “cat”: 4.2%, rank 6, loss 3.17".
 * @param {Prediction} prediction
 */
export function nextSentence({ next }) {
  if (!next) return "Nothing follows in the text.";
  const token = next.token === null ? "a token" : `“${isolated(short(next.token, 24))}”`;
  const place = next.rank === 1 ? "the likeliest" : `rank ${count(next.rank)}`;
  return `In the text follows ${token}: ${percent(next.probability)}, ${place}, loss ${number(next.loss, 2)}.`;
}

/**
 * The same of two runs: "In the text follows “cat”: 4.2% (rank 6) → 0.3% (rank 41)".
 * @param {Prediction} before
 * @param {Prediction} after
 */
export function nextChange({ next: a }, { next: b }) {
  if (!a || !b) return "Nothing follows in the text.";
  const token = a.token === null ? "a token" : `“${isolated(short(a.token, 24))}”`;
  const [from, to] = [a, b].map(({ probability, rank }) => `${percent(probability)} (rank ${count(rank)})`);
  return `In the text follows ${token}: ${from} → ${to}.`;
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
  const lists = element("div", { class: "likely-lists" });
  const after = await app.source.prediction(text, position);
  if (own === null) {
    lists.append(predictionList(after, "Likeliest next tokens"));
    return { lists, sentence: nextSentence(after) };
  }
  const before = await app.source.prediction(own, position);
  lists.append(
    titled("The model’s own run", predictionList(before, "Likeliest next tokens of the model’s own run")),
    titled("Edited run", predictionList(after, "Likeliest next tokens of the edited run"), "edited"),
  );
  return { lists, sentence: nextChange(before, after) };
}

/**
 * @param {string} title
 * @param {HTMLElement} list
 */
function titled(title, list, kind = "") {
  return element("div", { class: `likely ${kind}` }, element("h4", { text: title }), list);
}
