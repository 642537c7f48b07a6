// @ts-check
// What a reader of a new text sees first: its title, and a query of a word that attends strongly to another word.

import { isSpecial } from "../data/tokens.js";

const CANDIDATES = 128; // queries that are compared, spread over the text
const SINK_SHARE = 0.25; // of the attention of the candidates, above which a key counts as a sink
const LONGEST = 48; // characters of a title

/**
 * The query of a head that says most (`telling_token.py`).
 * @param {HeadMap} head
 * @param {string[]} tokens
 */
export function tellingQuery(head, tokens) {
  const { T, S } = head;
  const words = tokens.flatMap((token, t) => (isWord(token) ? [t] : []));
  const late = words.filter((t) => t >= Math.floor(T / 4));
  const among = late.length ? late : words.length ? words : [T - 1];
  const step = Math.ceil(among.length / CANDIDATES);
  const candidates = among.filter((_, n) => n % step === 0);
  const rows = candidates.map((t) => head.row(t));
  const mean = new Float64Array(S);
  for (const row of rows) row.forEach((weight, j) => (mean[j] += weight / rows.length));
  const strongest = rows.map((row, n) =>
    row.reduce((most, weight, j) => {
      const counts = j > 0 && j !== candidates[n] && mean[j] <= SINK_SHARE && isWord(tokens[j]);
      return counts ? Math.max(most, weight) : most;
    }, 0),
  );
  return candidates[strongest.indexOf(Math.max(...strongest))];
}

/**
 * A position whose next token is worth explaining: of the second half of a text, where the next token, which has
 * letters, was predicted best; the last position if no token there has letters.
 * @param {ArrayLike<number>} losses
 * @param {string[]} tokens
 */
export function tellingPosition(losses, tokens) {
  const T = tokens.length;
  let best = T - 1;
  for (let t = Math.floor(T / 2); t < T - 1; t++) {
    if (!tokens[t].trim() || !/\p{L}/u.test(tokens[t + 1])) continue;
    if (best === T - 1 || losses[t] < losses[best]) best = t;
  }
  return best;
}

/**
 * Whether a token has letters or digits and is no special token.
 * @param {string} token
 */
function isWord(token) {
  return /[\p{L}\p{Nd}]/u.test(token) && !isSpecial(token);
}

/**
 * The first words of a text (`titles.py`).
 * @param {string} text
 */
export function titleOf(text) {
  const words = text
    .slice(0, 20 * LONGEST)
    .trim()
    .replace(/\s+/g, " ");
  if (words.length <= LONGEST) return words;
  const shortened = words.slice(0, LONGEST - 1);
  const whole = shortened.slice(0, Math.max(0, shortened.lastIndexOf(" "))) || shortened;
  return `${whole.replace(/[ ,;:]+$/, "")}…`;
}

/**
 * A title that no other text has: a second text with the same first words is called "… (2)".
 * @param {string} title
 * @param {Pick<TextMeta, "title" | "edited">[]} texts
 */
export function distinctTitle(title, texts) {
  const taken = texts.filter(({ edited }) => !edited).map((one) => one.title);
  let name = title;
  for (let n = 2; taken.includes(name); n++) name = `${title} (${n})`;
  return name;
}
