// @ts-check
// What the model expects after a token: in its own run, or in that and the edited one side by side.

import { element } from "../common/dom.js";
import { nextChange, nextSentence, predictionList } from "../common/prediction_list.js";

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
 * @param {string} [kind]
 */
function titled(title, list, kind = "") {
  return element("div", { class: `likely ${kind}` }, element("h4", { text: title }), list);
}
