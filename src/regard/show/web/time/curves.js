// @ts-check
// What the numbers of a training run look like: which scores there are, their scale, and their curves.

import { known, last } from "../data/arrays.js";
import { isShare, number, percent } from "../data/format.js";

/** @typedef {{ layer: number, head: number }} RunHead */
/** @typedef {(x: number | null) => string} SayScore */

const FIRST = ["induction", "previous_token", "normalised_entropy", "largest_score"]; // what a run is asked for most
const NAMED = 5; // lines that have a name, at most
const CLEAR = 0.15; // of the scale, above which lines stand apart

/**
 * The names of the scores in a table, those that are asked for most first.
 * @param {Record<string, ScoreHistory>} table
 */
export function scoreNames(table) {
  const names = Object.keys(table);
  return [...FIRST.filter((name) => names.includes(name)), ...names.filter((name) => !FIRST.includes(name))];
}

/**
 * The end of a score's scale, from all that any head scores during the run, so that the scale stands still.
 * @param {string} name
 * @param {ScoreHistory} history
 */
export function historyTop(name, history) {
  const all = history.heads.flat(2).concat(history.null).filter(known);
  const most = Math.max(1e-9, ...all);
  return isShare(name) ? Math.min(1, Math.ceil(most * 10) / 10) : most;
}

/**
 * The head with the highest score at a step; null if none has a score.
 * @param {(number | null)[][]} scores by layer and head
 * @returns {(RunHead & { value: number }) | null}
 */
export function highestHead(scores) {
  const all = scores.flatMap((row, layer) =>
    row.flatMap((value, head) => (value === null ? [] : [{ layer, head, value }])),
  );
  return all.length ? all.reduce((best, one) => (one.value > best.value ? one : best)) : null;
}

/**
 * The head that an address names as "layer/head"; if there is none, the highest at the end of the run.
 * @param {string} address
 * @param {ScoreHistory} history
 * @returns {RunHead}
 */
export function chosenRunHead(address, history) {
  const [layer, head] = address.split("/").map(Number);
  const end = last(history.heads);
  if (end[layer]?.[head] !== undefined) return { layer, head };
  return highestHead(end) ?? { layer: 0, head: 0 };
}

/**
 * A number at each step of a run.
 * @param {number[]} steps
 * @param {(at: number) => number | null} value
 * @returns {[number, number | null][]}
 */
export function overRun(steps, value) {
  return steps.map((step, at) => [step, value(at)]);
}

/**
 * The axis of a run's steps.
 * @param {number[]} steps
 * @returns {ChartAxis}
 */
function stepAxis(steps) {
  return {
    title: "step",
    low: steps[0],
    high: last(steps) || 1,
    say: (x) => (x >= 10000 ? `${x / 1000}k` : String(x)),
  };
}

/**
 * The heads, as "layer/head", whose lines have names: the highest at the end of the run, if they stand clear of 0.
 * @param {ScoreHistory} history
 * @param {number} top of the scale
 */
function namedHeads(history, top) {
  const ends = last(history.heads).flatMap((row, y) => row.map((value, x) => ({ name: `${y}/${x}`, value })));
  return ends
    .filter(({ value }) => (value ?? 0) > CLEAR * top)
    .sort((a, b) => (b.value ?? 0) - (a.value ?? 0))
    .slice(0, NAMED)
    .map(({ name }) => name);
}

/**
 * The curves of every head, with the chosen one and the uniform baseline in front.
 * @param {object} what
 * @param {number[]} what.steps
 * @param {ScoreHistory} what.history
 * @param {RunHead} what.chosen
 * @param {string} what.name of the score
 * @param {string} what.title of the score
 * @param {number} what.top
 * @param {SayScore} what.say
 * @param {number} what.mark the step that is shown
 * @returns {ChartData}
 */
export function scoreChart({ steps, history, chosen: { layer, head }, name, title, top, say, mark }) {
  const curve = (/** @type {number} */ y, /** @type {number} */ x) =>
    overRun(steps, (at) => history.heads[at][y][x]);
  /** @type {(y: number, x: number, look: { kind: string, name?: string }) => ChartSeries} */
  const headCurve = (y, x, look) => ({
    ...look,
    id: `${y}/${x}`,
    about: `Layer ${y}, head ${x}`,
    points: curve(y, x),
  });
  const named = namedHeads(history, top);
  return {
    label: `${title} of every head over the run`,
    description:
      `${last(steps).toLocaleString("en-US")} steps; the chosen head, layer ${layer} head ${head}, ends at ` +
      `${say(last(history.heads)[layer][head])}.`,
    mark,
    x: stepAxis(steps),
    y: { title, low: 0, high: top, say: (x) => (isShare(name) ? percent(x) : String(x)) },
    series: [
      ...history.heads[0].flatMap((row, y) =>
        row.map((_, x) => {
          const isNamed = named.includes(`${y}/${x}`) && (y !== layer || x !== head);
          return headCurve(y, x, { kind: "faint", name: isNamed ? `${y}.${x}` : "" });
        }),
      ),
      ...(history.null.some(known)
        ? [{ name: "uniform", kind: "null", points: overRun(steps, (at) => history.null[at]) }]
        : []),
      headCurve(layer, head, { kind: "own", name: `head ${layer}.${head}` }),
    ],
  };
}

/**
 * The curves of the training and the validation loss; null if there are none.
 * @param {TrainingRun} run
 * @param {number} mark the step that is shown
 * @returns {ChartData | null}
 */
export function lossChart({ steps, loss, validation }, mark) {
  const training = overRun(loss.steps, (at) => loss.values[at]);
  const judged = overRun(steps, (at) => validation[at]);
  const all = [...training, ...judged].map(([, value]) => value).filter(known);
  if (!all.length) return null;
  return {
    label: `Loss over the run: validation ends at ${number(last(validation), 2)} nats`,
    mark,
    x: stepAxis(steps),
    y: { title: "loss, nats per token", low: 0, high: Math.max(...all), say: String },
    series: [
      { name: training.length ? "training" : "", kind: "null", points: training },
      { name: "validation", kind: "own", points: judged },
    ],
  };
}

/**
 * A score of every head at every step, as a table.
 * @param {number[]} steps
 * @param {ScoreHistory} history
 * @returns {TableRow[]}
 */
export function historyRows(steps, history) {
  const heads = history.heads[0].flatMap((row, layer) => row.map((_, head) => ({ layer, head })));
  return [
    ["step", "uniform", ...heads.map(({ layer, head }) => `${layer}.${head}`)],
    ...steps.map((step, at) => [
      step,
      history.null[at],
      ...heads.map(({ layer, head }) => history.heads[at][layer][head]),
    ]),
  ];
}
