// @ts-check
// The words and sentences of a text as spans of its tokens. The browser's own rules cut the text, which differ from
// Python's (`spans/text_spans.py`) in rare cases, such as after "Dr.".

import { isSpecial } from "../../data/tokens.js";
import { locate } from "../../data/split_characters.js";

/** A line end within a paragraph, which would end a sentence. */
const WRAPPED = /(?<!\n)\n(?!\s*\n)/g;

/** @param {string} text */
const isSpace = (text) => !/\S/.test(text);

/**
 * Where the segments of a text begin and end, in code points.
 * @param {string} text
 * @param {"word" | "sentence"} granularity
 */
function edgesOf(text, granularity) {
  const edges = [0];
  for (const { segment } of new Intl.Segmenter("en", { granularity }).segment(text))
    edges.push(edges[edges.length - 1] + [...segment].length);
  return edges;
}

/**
 * Where the words and the sentences of a list of tokens begin, and the number of tokens.
 * @param {string[]} tokens
 * @returns {Record<UnitName, number[]>}
 */
export function textUnits(tokens) {
  const { text, places } = locate(tokens);
  const cut = (/** @type {number[]} */ edges) => {
    const starts = spanStarts(tokens, places, text, edges);
    return [...new Set([0, ...starts, tokens.length])].sort((a, b) => a - b);
  };
  const whole = text.join("");
  return {
    words: cut(edgesOf(whole, "word")),
    sentences: cut(edgesOf(whole.replace(WRAPPED, " "), "sentence")),
  };
}

/**
 * The first tokens of the spans that begin where segments of the text do.
 * @param {string[]} tokens
 * @param {[number, number][]} places of the tokens in the text
 * @param {string[]} text code points
 * @param {number[]} edges of the segments
 */
function spanStarts(tokens, places, text, edges) {
  /** @type {{ first: number, special: boolean, last: number }[]} */
  const spans = [];
  let waiting = -1; // the first of some tokens that hold only space: they belong to what follows
  let segment = 0; // tokens come in order, and so do their segments
  const segmentOf = (/** @type {number} */ place) => {
    while (segment > 0 && edges[segment] > place) segment--;
    while (segment + 1 < edges.length && edges[segment + 1] <= place) segment++;
    return segment;
  };
  const flush = () => {
    const before = spans.at(-1);
    if (waiting >= 0 && (!before || before.special)) spans.push({ first: waiting, special: false, last: -1 });
    waiting = -1;
  };
  tokens.forEach((token, number) => {
    if (isSpecial(token)) {
      flush();
      spans.push({ first: number, special: true, last: -1 });
      return;
    }
    const [start, stop] = places[number];
    const content = [];
    for (let i = start; i < stop; i++) if (!isSpace(text[i])) content.push(i);
    if (!content.length) {
      if (waiting < 0) waiting = number;
      return;
    }
    const first = segmentOf(content[0]);
    const last = segmentOf(content[content.length - 1]);
    const before = spans.at(-1);
    if (before && !before.special && first <= before.last) before.last = Math.max(last, before.last);
    else spans.push({ first: waiting < 0 ? number : waiting, special: false, last });
    waiting = -1;
  });
  flush();
  return spans.map((span) => span.first);
}
