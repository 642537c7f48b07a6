// @ts-check
// What the Survey view shows of which head: the two scores, the points, the chosen head. It knows numbers and names.

import { headName } from "../heads/order.js";
import { isShare, score } from "../data/format.js";
import { inListOrder, scoreTitle } from "../data/score_words.js";

/** Scores that tell most heads apart, first those to begin with: from left to right, and from bottom to top. */
const FIRST = ["previous_token", "induction"];

/**
 * The names of the two scores: those of the state where they exist, else the first ones.
 * @param {Survey} survey
 * @param {Pick<State, "surveyAcross" | "surveyUp">} state
 */
export function chosenScores({ names }, { surveyAcross, surveyUp }) {
  const usual = [...FIRST.filter((name) => names.includes(name)), ...inListOrder(names)];
  const across = names.includes(surveyAcross) ? surveyAcross : usual[0];
  const up = names.includes(surveyUp) ? surveyUp : (usual.find((name) => name !== across) ?? across);
  return { across, up };
}

const NAMED = 4; // points whose names stand beside them, at most

/**
 * A chart of the heads that have both scores, each a dot; the chosen one over the others, and names for those with a
 * label that are furthest out.
 * @param {Survey} survey
 * @param {{ across: string, up: string }} names
 * @param {string} chosen
 * @returns {ChartData}
 */
export function scatterChart({ heads }, { across, up }, chosen) {
  const shown = heads.filter(({ scores }) => Object.hasOwn(scores, across) && Object.hasOwn(scores, up));
  /** @type {(name: string) => ChartAxis} */
  const axis = (name) => {
    const values = shown.map(({ scores }) => scores[name]);
    return {
      low: Math.min(0, ...values),
      high: axisEnd(name, values),
      title: scoreTitle(name),
      say: (x) => score(name, x),
    };
  };
  const [x, y] = [axis(across), axis(up)];
  const far = (/** @type {SurveyRow} */ { scores }) => scores[across] / x.high + scores[up] / y.high;
  const labelled = shown.filter(({ labels }) => labels.length).toSorted((a, b) => far(b) - far(a));
  const named = labelled.slice(0, NAMED);
  const isChosen = (/** @type {SurveyRow} */ row) => headName(row) === chosen;
  return {
    label: `Every head by its ${x.title} and ${y.title}`,
    x: { ...x, title: `${x.title} →` },
    y: { ...y, title: `↑ ${y.title}` },
    series: shown
      .toSorted((a, b) => Number(isChosen(a)) - Number(isChosen(b)))
      .map((row) => ({
        id: headName(row),
        name: named.includes(row) ? `${row.layer}.${row.head}` : "",
        about: `Layer ${row.layer}, head ${row.head}`,
        kind: isChosen(row) ? "own" : row.labels.length ? "labelled" : "plain",
        points: [[row.scores[across], row.scores[up]]],
      })),
  };
}

/**
 * The head that is described: the chosen one, else that with the highest score from bottom to top.
 * @param {Survey} survey
 * @param {string} chosen
 * @param {string} up
 */
export function chosenRow({ heads }, chosen, up) {
  const high = (/** @type {SurveyRow} */ row) => row.scores[up] ?? -Infinity;
  return (
    heads.find((row) => headName(row) === chosen) ??
    heads.reduce((best, row) => (high(row) > high(best) ? row : best), heads[0])
  );
}

/**
 * The end of an axis: a bit above the highest score; 1 at most for shares.
 * @param {string} name
 * @param {number[]} values
 */
export function axisEnd(name, values) {
  const top = 1.05 * Math.max(0, ...values);
  return isShare(name) ? Math.min(1, Math.max(0.1, top)) : top || 1;
}

/**
 * A range of distances in words: 0, 1, 2–3, 4–7.
 * @param {{ from: number, below: number }} bin
 */
export function rangeName({ from, below }) {
  return below - from > 1 ? `${from}–${below - 1}` : String(from);
}

/**
 * The tokens of an example with the gaps between them, each with the query's weight on it; null where it is not among
 * the query's strongest keys.
 * @param {SurveyExample} example
 */
export function excerptOf({ tokens, positions, query, keys }) {
  const weights = new Map(keys);
  return tokens.map((token, place) => ({
    token,
    position: positions[place],
    gap: place > 0 && positions[place] > positions[place - 1] + 1,
    isQuery: place === query,
    weight: weights.get(place) ?? null,
  }));
}

/**
 * All scores of every head, as a table.
 * @param {Survey} survey
 * @returns {TableRow[]}
 */
export function surveyRows({ names, heads }) {
  return [
    ["layer", "head", "label", ...names],
    ...heads.map(({ layer, head, label, scores }) => [
      layer,
      head,
      label ?? "",
      ...names.map((name) => scores[name] ?? null),
    ]),
  ];
}
