// @ts-check
// Every step of a row of attention, in order: what it is called, one sentence, its shape, its numbers.
// It knows the computation; choosing a token and drawing a line are the business of others.

import { element } from "../parts/dom.js";
import { exact, number, some } from "../data/format.js";
import { bar, barLine, bars, checks, entry, remainder, total, vectors } from "./lines.js";
import { short } from "../data/tokens.js";
import { allNumbers, reach, vector } from "./vectors.js";

/**
 * Every step: {title, about, shape, body}.
 * @param {StepContext} context
 */
export function stepList(context) {
  const { work, example, app } = context;
  const { D, S } = work.shapes;
  /** @type {StepEntry[]} */
  const out = [];
  if (example?.projected) out.push(projection(context, app.meta.example));
  out.push(
    {
      title: "Query and keys",
      about: "The query describes what this token looks for; each key describes what its token offers.",
      shape: `q (${D})   k (${S}, ${D})`,
      body: vectors(context, "k", { name: "q", values: work.q }),
    },
    {
      title: "Scores",
      about:
        "The score of a key is its dot product with the query: the more the two point the same way, the higher it is.",
      shape: `q · kᵀ → (${S})`,
      body: [...bars(context, "score"), ...productBars(context)],
    },
    scaled(context),
  );
  if (work.softcap) {
    out.push({
      title: "Capped",
      about: `A soft cap c = ${work.softcap} keeps every score between −c and c: c · tanh(score / c).`,
      shape: `→ (${S})`,
      body: bars(context, "capped"),
    });
  }
  out.push(masked(context), softmax(context));
  out.push(...(work.output ? [values(context), output(context, work.output)] : [left(context)]));
  return out;
}

/**
 * @param {StepContext} context
 * @param {StageExample} example
 * @returns {StepEntry}
 */
function projection({ work, keys, key, name }, example) {
  const { x, projections } = example;
  return {
    title: "Tokens and matrices",
    about:
      "Each token is a vector of three numbers. Three matrices project it to a query, a key and a value.",
    shape: `x (${keys.length}, 3)   W (3, 2)`,
    body: [
      element("div.rows", ...keys.map((one) => entry(one.key, key(one.key), vector(x[one.key], 1, "x")))),
      element("div.matrices", ...Object.entries(projections).map(([label, matrix]) => grid(label, matrix))),
      element(
        "p.note",
        `So the query of “${name}” is (${x[work.row].join(" ")}) · W_q = (${projections.W_q[0]
          .map((_, c) =>
            number(
              x[work.row].reduce((sum, value, i) => sum + value * projections.W_q[i][c], 0),
              3,
            ),
          )
          .join(" ")}).`,
      ),
    ],
  };
}

/**
 * @param {string} label
 * @param {number[][]} matrix
 */
function grid(label, matrix) {
  const box = element("span.matrix");
  box.style.gridTemplateColumns = `repeat(${matrix[0].length}, auto)`;
  box.append(...matrix.flat().map((x) => element("span", number(x, 1))));
  return element("span.named-matrix", element("span.quiet.mono", label), box);
}

/**
 * @param {StepContext} context
 * @returns {StepEntry}
 */
function scaled(context) {
  const { scale, shapes } = context.work;
  const root = Math.sqrt(shapes.D);
  if (scale === 1) {
    return {
      title: "Not scaled",
      about: "Here the scores are not scaled. Usually they are divided by the square root of the head width.",
      shape: `× 1 → (${shapes.S})`,
      body: bars(context, "scaled"),
    };
  }
  const usual = Math.abs(scale * root - 1) < 1e-6;
  return {
    title: usual ? "Divided by √d" : "Scaled",
    about: usual
      ? `Dot products grow with the head width d = ${shapes.D}, so they are divided by √${shapes.D} = ${number(root, 3)}.`
      : `The model multiplies its scores by ${number(scale, 4)} instead of dividing by √${shapes.D}.`,
    shape: `× ${number(scale, 4)} → (${shapes.S})`,
    body: bars(context, "scaled"),
  };
}

const LISTED = 8; // products of a score

/**
 * One score number by number: the products q_i · k_i that it is the sum of, the largest first, of the chosen cell or of
 * the key with the largest weight.
 * @param {StepContext} context
 */
function productBars(context) {
  const { work, keys, state } = context;
  const strongest = keys.reduce((a, b) => (b.weight > a.weight ? b : a));
  const { key, k, score } = keys.find((one) => one.key === state.col) ?? strongest;
  if (!k || k.length <= LISTED) return [];
  const all = work.q.map((x, i) => ({ i, product: x * k[i] }));
  const sorted = all.toSorted((a, b) => Math.abs(b.product) - Math.abs(a.product));
  const most = Math.abs(sorted[0].product);
  const rows = sorted.slice(0, LISTED).map(({ i, product }) => {
    const drawn = barLine(product, -most, most);
    return entry(null, `q[${i}] · k[${i}]`, drawn, number(product, 3));
  });
  const rest = sorted.slice(LISTED).reduce((sum, { product }) => sum + product, 0);
  rows.push(total(`${k.length - LISTED} others`, number(rest, 3)), total("the score", number(score, 3)));
  const title = `The products of the score of “${short(context.key(key), 24)}”`;
  const lines = element("div.rows", ...rows);
  return [element("details.all-numbers.products", element("summary", title), lines)];
}

/**
 * @param {StepContext} context
 * @returns {StepEntry}
 */
function masked(context) {
  const { work, layer, example, keys } = context;
  const added = keys.some((key) => key.added !== 0);
  const all = work.visible === work.shapes.S;
  const rule = (layer ?? example)?.mask;
  const under = rule === "full" ? "because there is no mask" : `under the mask (${rule})`;
  const body = bars(context, (key) => (key.visible ? key.capped + key.added : -Infinity));
  // The strongest keys are visible ones: the next token stands for those that a causal mask hides.
  const next = work.position + 1;
  if (next < work.shapes.S && rule?.includes("causal") && keys.every((key) => key.visible))
    body[0].append(entry(next, context.key(next), barLine(-Infinity, 0, 1), "−∞", "hidden-key"));
  return {
    title: added ? "Masked, with a bias" : "Masked",
    about: all
      ? `${work.shapes.S === 1 ? "The only key is" : `All ${work.shapes.S} keys are`} visible ${under}, so nothing changes.`
      : `${work.visible} of ${work.shapes.S} keys ${work.visible === 1 ? "is" : "are"} visible ${under}. ` +
        "The scores of the others become −∞, which softmax turns into 0.",
    shape: `→ (${work.shapes.S})`,
    body,
  };
}

/**
 * @param {StepContext} context
 * @returns {StepEntry}
 */
function softmax(context) {
  const { work, keys, rest, layer } = context;
  const rows = keys.map((key) => bar(context, key, key.weight, 0, 1, exact(key.weight), "weights"));
  const others = work.shapes.S - keys.length;
  if (others > 0 && rest > 0) rows.push(remainder(context, exact(rest), rest));
  rows.push(total("sum of the row", number(work.sum, 6)));
  const sink = layer?.sinks;
  const again = keys
    .filter((key) => key.visible)
    .map((key) => Math.abs(Math.exp(key.capped + key.added - (work.lse ?? NaN)) - key.weight));
  const off = Math.max(0, ...again);
  const sums = Math.abs(context.sum - 1); // of all weights, added up on the page
  return {
    title: "Softmax",
    about:
      "Softmax takes the exponential of every score and divides by their sum, so that the weights add up to 1.",
    shape: `exp(score − lse) → (${work.shapes.S})   lse ${number(work.lse, 4)}`,
    body: [
      element("div.rows", ...rows),
      checks([
        sink
          ? [
              Math.abs(context.sum - work.sum) < 1e-3,
              `The weights sum to ${number(context.sum, 6)}; the sink logit takes the rest.`,
            ]
          : work.visible === 0
            ? [true, "No key is visible, so all weights are 0."]
            : [
                sums < 1e-3,
                `All ${work.shapes.S} weights, added up on this page, sum to ${number(context.sum, 6)}, ` +
                  `${sums === 0 ? "exactly 1" : `${sums.toExponential(1)} from 1`}.`,
              ],
        [
          off < 2e-3,
          `exp(score − lse), recomputed on this page, differs from the weights shown by at most ${off.toExponential(1)}.`,
        ],
      ]),
    ],
  };
}

/**
 * @param {StepContext} context
 * @returns {StepEntry}
 */
function values(context) {
  const { S, E } = context.work.shapes;
  return {
    title: "Values",
    about: "Each key has a value, the vector that a query receives in proportion to its weight.",
    shape: `v (${S}, ${E})`,
    body: vectors(context, "v"),
  };
}

/**
 * @param {StepContext} context
 * @param {number[]} computed
 * @returns {StepEntry}
 */
function output(context, computed) {
  const { work, keys, layer, example } = context;
  const part = computed.map((_, e) =>
    keys.reduce((sum, key) => sum + (key.weight ? key.weight * valueOf(key)[e] : 0), 0),
  );
  const rest = computed.map((x, e) => x - part[e]);
  const scaledValues = keys.map((key) => valueOf(key).map((x) => (key.weight ? x * key.weight : 0)));
  const most = reach([computed, rest, ...scaledValues]);
  const rows = keys.map((key, n) =>
    entry(
      key.key,
      context.key(key.key),
      vector(scaledValues[n], most, "weight · v"),
      `× ${exact(key.weight)}`,
    ),
  );
  const others = work.shapes.S - keys.length;
  if (others > 0) {
    rows.push(
      entry(
        null,
        `${others} others`,
        vector(rest, most, "the others together"),
        `× ${exact(context.rest)}`,
        "cut",
      ),
    );
  }
  rows.push(entry(null, "output", vector(computed, most, "output"), "", "total"));
  /** @type {[boolean, string][]} */
  const proved = [];
  if (others === 0) {
    const off = Math.max(...rest.map(Math.abs));
    proved.push([
      off < 1e-4,
      "Added up on this page, the rows give the library’s output" +
        `${off === 0 ? ", exactly" : ` within ${off.toExponential(1)}`}.`,
    ]);
  }
  if (layer) {
    const { certified, difference } = layer.evidence;
    proved.push([
      certified,
      certified
        ? `The library’s output is within ${(difference ?? NaN).toExponential(1)} of what the model itself computed, ` +
          `over ${rowsOf(layer)} of this layer.`
        : `This layer is ${layer.evidence.text}.`,
    ]);
  } else if (example) {
    proved.push([
      example.apart < 1e-6,
      `All outputs of this stage are within ${example.apart.toExponential(1)} of those of regard.stages.`,
    ]);
  }
  return {
    title: "Output",
    about: "The values, each times its weight, add up to the output of this head for this token.",
    shape: `weights (${work.shapes.S}) · v (${work.shapes.S}, ${work.shapes.E}) → (${work.shapes.E})`,
    body: [
      element("div.rows", ...rows),
      allNumbers([
        { name: "output", values: computed },
        ...keys.map((key) => ({ name: `v[${key.key}]`, values: valueOf(key) })),
      ]),
      checks(proved),
    ],
  };
}

/** @param {KeySteps} key */
const valueOf = (key) => key.v ?? [];

/** @param {Layer} layer */
const rowsOf = ({ evidence }) =>
  evidence.rows === evidence.of
    ? `all ${some(evidence.of, "row")}`
    : `${evidence.rows} of ${evidence.of} rows`;

/**
 * Where the values are not at hand: why, and how to have them.
 * @param {StepContext} context
 * @returns {StepEntry}
 */
function left({ layer }) {
  const captured = layer?.value_width !== null;
  return {
    title: "Values and output",
    about: "The last step adds up the values, each times its weight.",
    shape: "",
    body: [
      element(
        "p.note",
        captured
          ? "The values were left out to keep this file small, so the steps end at the weights. " +
              'seen.to_html("page.html", values=True) includes them.'
          : "The capture did not keep the values, so the steps end at the weights. " +
              "regard.capture(model, values=True) keeps them.",
      ),
    ],
  };
}
