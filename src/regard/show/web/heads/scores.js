// @ts-check
// Scores of a head as lines to read: its value as a bar, the baselines as ticks, the interval as a whisker.
// It knows names and numbers; which heads are shown is the gallery's business.

import { known } from "../common/arrays.js";
import { element } from "../common/dom.js";
import { score } from "../common/format.js";

/**
 * What each score is called, and what it says in a few words.
 * @type {Record<string, [string, string]>}
 */
export const SCORES = {
  previous_token: ["previous", "attention on the token before"],
  itself: ["itself", "attention on the token itself"],
  duplicate: ["duplicate", "attention on earlier copies of the token"],
  induction: ["induction", "attention on what came after earlier copies of the token"],
  sink: ["sink", "attention on the one key that gets most"],
  local: ["local", "attention on the last few tokens"],
  eviction: ["eviction", "attention that a small cache would lose"],
  normalised_entropy: ["spread", "entropy over the most that there could be: 1 is looking everywhere alike"],
  entropy: ["entropy", "how spread out the attention is, in nats"],
  distance: ["distance", "how many tokens back it looks, on average"],
};

/**
 * A label as words: previous_token is “previous token”.
 * @param {string} label
 */
export const words = (label) => label.replaceAll("_", " ");

/**
 * The names of the scores that some head has, in the order above, then any others.
 * @param {HeadScores[]} heads
 */
export function namesOf(heads) {
  const found = new Set(heads.flatMap((head) => Object.keys(head.scores)));
  return [
    ...Object.keys(SCORES).filter((name) => found.has(name)),
    ...[...found].filter((name) => !SCORES[name]),
  ];
}

/**
 * The end of a score's scale: 1 for shares, the greatest that any head has for the others.
 * @param {string} name
 * @param {HeadScores[]} heads
 */
export function endOf(name, heads) {
  if (name !== "entropy" && name !== "distance") return 1;
  const all = heads.map((head) => head.scores[name]).filter(Boolean);
  return Math.max(1e-9, ...all.flatMap((one) => [one.value ?? 0, one.null ?? 0, one.high ?? 0]));
}

/**
 * All that is known of a score, as a sentence.
 * @param {string} name
 * @param {Score} one
 */
export function sentence(name, one) {
  const parts = [`${SCORES[name]?.[0] ?? words(name)} ${score(name, one.value)}`];
  if (known(one.low)) parts.push(`95% interval ${score(name, one.low)} to ${score(name, one.high)}`);
  if (known(one.null)) parts.push(`uniform baseline ${score(name, one.null)}`);
  if (known(one.shuffled)) parts.push(`shuffled baseline ${score(name, one.shuffled)}`);
  if (known(one.without_sink)) parts.push(`without the sink ${score(name, one.without_sink)}`);
  return parts.join("; ");
}

/**
 * The bar of a score, with its baselines and its interval.
 * @param {Score} one
 * @param {number} end
 * @param {string} [kind]
 */
export function scoreBar(one, end, kind = "") {
  const bar = element("span", { class: `score-bar ${kind}`, "aria-hidden": "true" });
  /** @param {number} x */
  const at = (x) => String(Math.min(1, Math.max(0, x / end)));
  /**
   * @param {string} name
   * @param {number} from
   * @param {number | null} [to]
   */
  const part = (name, from, to = null) => {
    const made = element("i", { class: name });
    made.style.setProperty("--from", at(from));
    if (to !== null) made.style.setProperty("--to", at(to));
    bar.append(made);
  };
  if (known(one.value)) part("value", 0, one.value);
  if (known(one.low) && known(one.high)) part("interval", one.low, one.high);
  if (known(one.null)) part("null", one.null);
  if (known(one.shuffled)) part("shuffled", one.shuffled);
  return bar;
}

/**
 * One line: name, bar, number.
 * @param {string} name
 * @param {Score} one
 * @param {number} end
 */
export function scoreLine(name, one, end) {
  const [title, about] = SCORES[name] ?? [words(name), ""];
  return element(
    "div",
    { class: "score-line", "data-name": name, title: `${about ? `${about}. ` : ""}${sentence(name, one)}` },
    element("span", { class: "score-name", text: title }),
    scoreBar(one, end),
    element("span", { class: "score-value", text: score(name, one.value) }),
  );
}
