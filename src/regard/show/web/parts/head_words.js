// @ts-check
// What a head does, in words: its labels as tags and its sentence. Python writes the sentence (`head_sentence.py`).

import { latest } from "./controls.js";
import { element } from "./dom.js";
import { scoreAbout, scoreTitle } from "../data/score_words.js";

const NONE = "No score of this head is clearly above those of uniform attention and of shuffled tokens.";
const UNTESTED =
  "Labels need intervals and shuffled tokens, which this page does not compute for texts that it reads: " +
  "regard inspect does.";

/** @param {Pick<HeadScores, "label" | "labels">} row */
export function labelsOf({ label, labels }) {
  return labels ?? (label ? [label] : []);
}

/**
 * The titles of a head's labels: as Python words them, which knows how far a head looks back, or those of the scores.
 * @param {Pick<HeadScores, "label" | "labels" | "label_words">} row
 */
function titlesOf(row) {
  return labelsOf(row).map((name, i) => row.label_words?.[i] ?? scoreTitle(name));
}

/**
 * The labels of a head in words, the first one first.
 * @param {Pick<HeadScores, "label" | "labels" | "label_words" | "untested">} row
 */
export function labelWords(row) {
  const none = row.untested ? "labels not tested" : "no clear pattern";
  return titlesOf(row).join(", ") || none;
}

/**
 * The labels of a head as tags, each with what it means as its tooltip.
 * @param {Pick<HeadScores, "label" | "labels" | "label_words" | "untested">} row
 */
export function labelTags(row) {
  const labels = labelsOf(row);
  if (!labels.length) {
    const title = row.untested ? UNTESTED : NONE;
    return [element("span.tag.none", { title }, labelWords(row))];
  }
  const titles = titlesOf(row);
  return labels.map((name, i) => element("span.tag", { title: scoreAbout(name) }, titles[i]));
}

/**
 * A head's labels and its sentence, which come when they are computed; `show()` follows the state.
 * @param {App} app
 */
export function headSentence(app) {
  const tags = element("span.tags");
  const sentence = element("p.head-sentence");
  const box = element("div.head-words", { "aria-live": "polite" }, tags, sentence);
  let shown = "";
  const fill = latest(async (fresh) => {
    const { text, layer, head } = app.state;
    let row = app.headRows.row(text, layer, head);
    if (!row) {
      tags.replaceChildren();
      sentence.textContent = "Measuring what this head does…";
      sentence.classList.add("pending");
      const rows = await app.headRows.layer(text, layer).catch((error) => {
        if (fresh()) sentence.textContent = `What this head does could not be measured: ${error.message}`;
        return null;
      });
      if (!fresh() || !rows) return;
      row = rows.find((one) => one.head === head);
    }
    sentence.classList.remove("pending");
    tags.replaceChildren(...(row ? labelTags(row) : []));
    sentence.textContent = row?.sentence ?? "";
  });
  const show = () => {
    const { text, layer, head } = app.state;
    const name = [text, layer, head].join(" ");
    if (name === shown) return;
    shown = name;
    fill();
  };
  return Object.assign(box, { show, tags });
}
