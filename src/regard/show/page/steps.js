// The whole computation of one row, step by step, with its actual numbers: of the model, or of the small
// example that the four stages share. It knows what `working.py` and `example.py` give.

import { badge, choice, element } from "./dom.js";
import { number, some, weight } from "./numbers.js";
import { empty, headPicker, latest, select, slider } from "./parts.js";
import { layerOf } from "./source.js";
import { short, tokenAt, visible } from "./tokens.js";
import { allNumbers, reach, vector } from "./vectors.js";

const SHOWN = [1, 2, 3, 4, 6, 8, 12]; // strongest keys, besides the first and the query's own

export function steps(root, app) {
  const which = choice("Of", "steps-which", { model: "the model", example: "the small example" }, (value) =>
    app.set({ example: value === "example" ? "0" : "", row: -1 }),
  );
  const picker = headPicker(app);
  const stage = select("Stage", (value) => app.set({ example: value }));
  const token = select("Token", (value) => app.set({ row: Number(value) }));
  const place = element("input", { type: "number", min: 0, class: "place-input", "aria-label": "Token’s place" });
  const placed = element("label", { class: "field" }, element("span", { class: "quiet small", text: "Token" }), place);
  const before = element("button", { class: "button", type: "button", text: "←", "aria-label": "The token before" });
  const after = element("button", { class: "button", type: "button", text: "→", "aria-label": "The token after" });
  const shown = slider("Strongest keys", (n) => {
    strongest = n;
    draw();
  });
  const page = element("div", { class: "column" });
  root.append(
    element("div", { class: "bar-of-choices" }, which, picker, stage, token, placed, element("div", { class: "fields" }, before, after), shown),
    element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "The steps" }, page),
  );
  let strongest = 4;
  let state = null;
  let found = null; // {work, tokens: {query, key(j)}, example}

  const count = () => (state.example ? app.meta.example.tokens.length : layerOf(app.meta, state.text, state.layer).rows);
  const row = () => (state.row >= 0 && state.row < count() ? state.row : state.example ? 1 : count() - 1);
  const step = (by) => app.set({ row: Math.min(count() - 1, Math.max(0, row() + by)) });
  before.addEventListener("click", () => step(-1));
  after.addEventListener("click", () => step(1));
  place.addEventListener("change", () => app.set({ row: Math.min(count() - 1, Math.max(0, Math.round(Number(place.value)) || 0)) }));

  const look = latest(async (fresh) => {
    try {
      const made = state.example ? small() : await ofModel();
      if (fresh()) found = made;
    } catch (error) {
      if (fresh()) page.replaceChildren(empty(error.message));
      return;
    }
    if (fresh()) draw();
  });

  async function ofModel() {
    const layer = layerOf(app.meta, state.text, state.layer);
    const at = row();
    const work = await app.source.steps(state.text, state.layer, state.head, at);
    const key = (j) => tokenAt(app.meta, state.text, layer, "keys", j);
    return { work, layer, name: tokenAt(app.meta, state.text, layer, "queries", at), key, example: null };
  }

  function small() {
    const { tokens, stages } = app.meta.example;
    const [n, h] = state.example.split(".").map(Number);
    const one = stages[n] ?? stages[0];
    const work = (one.heads[h || 0] ?? one.heads[0])[row()];
    return { work, layer: null, name: tokens[row()], key: (j) => tokens[j], example: one };
  }

  function draw() {
    if (!found) return;
    const { work, example } = found;
    const keys = pick(work.keys, example ? Infinity : strongest, work.position);
    const rest = 1 - keys.reduce((sum, key) => sum + key.weight, 0);
    const context = { ...found, keys, rest: Math.max(0, work.sum - (1 - rest)), app, state };
    const list = element("ol", { class: "steps-list" });
    stepsOf(context).forEach(({ title, about, shape, body }, n) => {
      list.append(
        element(
          "li",
          { class: "step" },
          element(
            "div",
            {},
            element("div", { class: "step-name" }, element("span", { class: "nth", text: n + 1 }), element("h2", { text: title })),
            element("p", { class: "step-about", text: about }),
            element("p", { class: "step-shape", text: shape }),
          ),
          element("div", { class: "step-body" }, ...body),
        ),
      );
    });
    page.replaceChildren(intro(context), list);
  }

  // The same key is lit up in every step.
  const light = (event) => {
    const key = event.target.closest?.("[data-key]")?.dataset.key;
    for (const one of page.querySelectorAll("[data-key]")) one.classList.toggle("alike", one.dataset.key === key);
  };
  page.addEventListener("pointerover", light);
  page.addEventListener("pointerleave", light);

  return {
    show(now) {
      state = now;
      const { example } = app.meta;
      which.value = state.example ? "example" : "model";
      which.hidden = !example;
      picker.show(state);
      for (const part of [picker, placed, shown]) part.hidden = Boolean(state.example);
      for (const part of [stage, token]) part.hidden = !state.example;
      place.value = row();
      place.max = count() - 1;
      before.disabled = row() <= 0;
      after.disabled = row() >= count() - 1;
      if (state.example) {
        const options = example.stages.flatMap((one, n) =>
          one.heads.map((_, h) => (one.heads.length > 1 ? [`${n}.${h}`, `${one.name}, head ${h + 1}`] : [`${n}`, one.name])),
        );
        stage.fill(options, state.example);
        token.fill(example.tokens.map((name, i) => [String(i), name]), row());
      }
      shown.fill(SHOWN, strongest);
      look();
    },
    hide() {},
  };
}

/** The strongest keys, with the first and the query's own, in order. */
function pick(keys, strongest, position) {
  if (keys.length <= strongest) return keys;
  const best = new Set([...keys].sort((a, b) => b.weight - a.weight).slice(0, strongest));
  return keys.filter((key) => best.has(key) || key.key === 0 || key.key === position);
}

function intro({ work, layer, name, example, state }) {
  const head = element("div", { class: "steps-intro" });
  if (example) {
    head.append(
      element("p", { class: "lead" }, `${example.name} attention, for `, element("span", { class: "token", text: name }), "."),
      element("p", { class: "note", text: `${example.about} Six tokens of three numbers each; every number here comes from regard.stages.` }),
    );
    return head;
  }
  head.append(
    element(
      "p",
      { class: "lead" },
      "What ",
      element("span", { class: "token", text: short(name, 24) }),
      `, token ${work.position}, looks at in layer ${layer.key}, head ${state.head}.`,
    ),
  );
  const text = layer.evidence.text.replace(/^(not )?certified:? ?/, "");
  const proof = element("p", { class: "note" }, badge(layer.evidence), ` ${text}`);
  head.append(proof);
  return head;
}

/** Every step: {title, about, shape, body}. */
function stepsOf(context) {
  const { work, example, app } = context;
  const { D, S } = work.shapes;
  const out = [];
  if (example?.projected) out.push(projection(context, app.meta.example));
  out.push(
    {
      title: "Query and keys",
      about: "The query says what this token looks for; each key says what its token has to offer.",
      shape: `q (${D})   k (${S}, ${D})`,
      body: vectors(context, "k", { name: "q", values: work.q }),
    },
    {
      title: "Scores",
      about: "Multiply the query with a key number by number and add up: the more they point the same way, the higher.",
      shape: `q · kᵀ → (${S})`,
      body: bars(context, "score"),
    },
    scaled(context),
  );
  if (work.softcap) {
    out.push({
      title: "Capped",
      about: `A soft cap keeps every score between −${work.softcap} and ${work.softcap}: ${work.softcap} · tanh(score / ${work.softcap}).`,
      shape: `→ (${S})`,
      body: bars(context, "capped"),
    });
  }
  out.push(masked(context), softmax(context));
  out.push(...(work.output ? [values(context), output(context)] : [left(context)]));
  return out;
}

function projection({ work, keys, key, name }, example) {
  const { x, projections } = example;
  return {
    title: "Tokens and matrices",
    about: "Each token is three numbers; one matrix makes queries of them, another keys, a third values.",
    shape: `x (${keys.length}, 3)   W (3, 2)`,
    body: [
      element(
        "div",
        { class: "rows" },
        ...keys.map((one) => entry(one.key, key(one.key), vector(x[one.key], 1, "x"))),
      ),
      element("div", { class: "matrices" }, ...Object.entries(projections).map(([label, matrix]) => grid(label, matrix))),
      element("p", {
        class: "note",
        text: `So the query of “${name}” is (${x[work.row].join(" ")}) · Wq = (${projections.Wq[0]
          .map((_, c) => number(x[work.row].reduce((sum, value, i) => sum + value * projections.Wq[i][c], 0), 3))
          .join(" ")}).`,
      }),
    ],
  };
}

function grid(label, matrix) {
  const box = element("span", { class: "matrix" });
  box.style.gridTemplateColumns = `repeat(${matrix[0].length}, auto)`;
  box.append(...matrix.flat().map((x) => element("span", { text: number(x, 1) })));
  return element("span", { class: "named-matrix" }, element("span", { class: "quiet mono", text: label }), box);
}

function scaled(context) {
  const { scale, shapes, keys } = context.work;
  const root = Math.sqrt(shapes.D);
  if (scale === 1) {
    return {
      title: "Not divided",
      about: "Here the scores stay as they are; otherwise they are divided by the square root of the width.",
      shape: `× 1 → (${shapes.S})`,
      body: bars(context, "scaled"),
    };
  }
  const usual = Math.abs(scale * root - 1) < 1e-6;
  return {
    title: usual ? "Divided by √d" : "Scaled",
    about: usual
      ? `Sums of ${shapes.D} products grow with the width, so they are divided by √${shapes.D} = ${number(root, 3)}.`
      : `The model multiplies its scores by ${number(scale, 4)} instead of dividing by √${shapes.D}.`,
    shape: `× ${number(scale, 4)} → (${shapes.S})`,
    body: bars(context, "scaled", keys),
  };
}

function masked(context) {
  const { work, layer, example, keys } = context;
  const added = keys.some((key) => key.added !== 0);
  const all = work.visible === work.shapes.S;
  const rule = (layer ?? example).mask;
  return {
    title: added ? "Masked, with a bias" : "Masked",
    about: all
      ? `The mask (${rule}) lets this token look at all ${some(work.shapes.S, "key")}, so nothing changes.`
      : `The mask (${rule}) lets it look at ${some(work.visible, "key")} of ${work.shapes.S}; the others become −∞, which softmax turns into 0.`,
    shape: `→ (${work.shapes.S})`,
    body: bars(context, (key) => (key.visible ? key.capped + key.added : -Infinity)),
  };
}

function softmax(context) {
  const { work, keys, rest, layer } = context;
  const rows = keys.map((key) => bar(context, key, key.weight, 0, 1, weight(key.weight), "weights"));
  const others = work.shapes.S - keys.length;
  if (others > 0 && rest > 0) rows.push(remainder(context, weight(rest), rest));
  rows.push(total("sum of the row", number(work.sum, 6)));
  const sink = layer?.sinks;
  const again = keys.filter((key) => key.visible).map((key) => Math.abs(Math.exp(key.capped + key.added - work.lse) - key.weight));
  const off = Math.max(0, ...again);
  const sums = Math.abs(work.sum - 1);
  return {
    title: "Softmax",
    about: "Each score becomes a power of e, and all are divided by their sum: shares of attention that add up to 1.",
    shape: `exp(score − lse) → (${work.shapes.S})   lse ${number(work.lse, 4)}`,
    body: [
      element("div", { class: "rows" }, ...rows),
      checks([
        sink
          ? [true, `The weights sum to ${number(work.sum, 6)}: a learned sink takes the rest.`]
          : work.visible === 0
            ? [true, "It may look at nothing, so all weights are 0."]
            : [sums < 1e-3, `All ${work.shapes.S} weights sum to ${number(work.sum, 6)}, ${sums === 0 ? "exactly 1" : `${sums.toExponential(1)} from 1`}.`],
        [off < 2e-3, `exp(score − lse), worked out again on this page, is ${off.toExponential(1)} from the weights shown.`],
      ]),
    ],
  };
}

function values(context) {
  const { S, E } = context.work.shapes;
  return {
    title: "Values",
    about: "What each token hands over when it is looked at.",
    shape: `v (${S}, ${E})`,
    body: vectors(context, "v"),
  };
}

function output(context) {
  const { work, keys, layer, example } = context;
  const part = work.output.map((_, e) => keys.reduce((sum, key) => sum + (key.weight ? key.weight * key.v[e] : 0), 0));
  const rest = work.output.map((x, e) => x - part[e]);
  const scaledValues = keys.map((key) => key.v.map((x) => (key.weight ? x * key.weight : 0)));
  const most = reach([work.output, rest, ...scaledValues]);
  const rows = keys.map((key, n) =>
    entry(key.key, context.key(key.key), vector(scaledValues[n], most, "weight · v"), `× ${weight(key.weight)}`),
  );
  const others = work.shapes.S - keys.length;
  if (others > 0) {
    rows.push(entry(null, `${others} others`, vector(rest, most, "the others together"), `× ${weight(context.rest)}`, "cut"));
  }
  rows.push(entry(null, "output", vector(work.output, most, "output"), "", "total"));
  const proved = [];
  if (others === 0) {
    const off = Math.max(...rest.map(Math.abs));
    proved.push([off < 1e-4, `Added up on this page, the rows give the library’s output${off === 0 ? ", exactly" : ` within ${off.toExponential(1)}`}.`]);
  }
  if (layer) {
    const { certified, difference } = layer.evidence;
    proved.push([
      certified,
      certified
        ? `The library’s output is within ${difference.toExponential(1)} of what the model itself computed, over ${rowsOf(layer)} of this layer.`
        : `This layer is ${layer.evidence.text}.`,
    ]);
  } else if (example) {
    proved.push([example.apart < 1e-6, `All outputs of this stage are within ${example.apart.toExponential(1)} of those of regard.stages.`]);
  }
  return {
    title: "Output",
    about: "Every value times its weight, added up: what this head passes on for this token.",
    shape: `weights (${work.shapes.S}) · v (${work.shapes.S}, ${work.shapes.E}) → (${work.shapes.E})`,
    body: [
      element("div", { class: "rows" }, ...rows),
      allNumbers([{ name: "output", values: work.output }, ...keys.map((key) => ({ name: `v[${key.key}]`, values: key.v }))]),
      checks(proved),
    ],
  };
}

const rowsOf = ({ evidence }) =>
  evidence.rows === evidence.of ? `all ${some(evidence.of, "row")}` : `${evidence.rows} of ${evidence.of} rows`;

/** Where the values are not at hand: why, and how to have them. */
function left({ layer }) {
  const captured = layer.value_width !== null;
  return {
    title: "Values and output",
    about: "The last step adds up the values, each times its weight.",
    shape: "",
    body: [
      element("p", {
        class: "note",
        text: captured
          ? "The values were left out to keep this file small, so it stops at the weights. seen.save(\"page.html\", values=True) takes them along."
          : "The capture did not keep the values, so it stops at the weights. regard.capture(model, values=True) keeps them.",
      }),
    ],
  };
}

/** The vectors of the shown keys, one a line; a first line of its own if there is one. */
function vectors(context, part, first = null) {
  const { keys } = context;
  const own = context.work.position;
  const most = reach([...(first ? [first.values] : []), ...keys.map((key) => key[part])]);
  const rows = keys.map((key) =>
    entry(key.key, context.key(key.key), vector(key[part], most, `${part}[${key.key}]`), null, key.visible ? "" : "hidden-key"),
  );
  if (first) rows.unshift(entry(own, context.name, vector(first.values, most, first.name), null, "query"));
  if (first) rows[0].querySelector(".place").textContent = first.name;
  const all = [...(first ? [first] : []), ...keys.map((key) => ({ name: `${part}[${key.key}]`, values: key[part] }))];
  return [element("div", { class: "rows" }, ...rows), ...(all[0].values.length > 4 ? [allNumbers(all)] : [])];
}

/** A bar for each shown key: `what` is the name of a number, or a function of the key. */
function bars(context, what) {
  const value = typeof what === "string" ? (key) => key[what] : what;
  const all = context.keys.map(value).filter(Number.isFinite);
  const [low, high] = [Math.min(0, ...all), Math.max(0, ...all)];
  const rows = context.keys.map((key) => bar(context, key, value(key), low, high, number(value(key), 3)));
  return [element("div", { class: "rows" }, ...rows)];
}

function bar(context, key, value, low, high, text, kind = "") {
  const line = element("span", { class: `bar-line ${kind}`, "aria-hidden": "true" });
  const span = high - low || 1;
  line.style.setProperty("--zero", String(-low / span));
  if (Number.isFinite(value)) {
    const piece = element("i");
    piece.style.setProperty("--from", String((Math.min(0, value) - low) / span));
    piece.style.setProperty("--size", String(Math.abs(value) / span));
    line.append(piece);
  }
  const row = entry(key.key, context.key(key.key), line, text);
  if (!Number.isFinite(value) || !key.visible) row.classList.add("hidden-key");
  row.lastChild.dataset.value = String(value);
  return row;
}

function remainder({ work, keys }, text, value) {
  const line = element("span", { class: "bar-line weights", "aria-hidden": "true" });
  const piece = element("i");
  piece.style.setProperty("--from", "0");
  piece.style.setProperty("--size", String(value));
  line.append(piece);
  return entry(null, `${work.shapes.S - keys.length} others`, line, text, "cut");
}

function total(name, text) {
  return entry(null, name, element("span"), text, "total");
}

/** A line: whose it is, what is drawn, and a figure if there is one. */
function entry(place, token, drawing, text = null, kind = "") {
  const row = element(
    "div",
    { class: `row ${text === null ? "wide" : ""} ${kind}` },
    element(
      "span",
      { class: "who" },
      element("span", { class: "place", text: place ?? "" }),
      element("span", { class: "token", text: place === null ? token : visible(token).slice(0, 60), title: place === null ? token : visible(token) }),
    ),
    element("span", { class: "drawn" }, drawing),
  );
  if (place !== null) row.dataset.key = String(place);
  if (text !== null) row.append(element("span", { class: "figure", text }));
  return row;
}

function checks(list) {
  return element(
    "ul",
    { class: "checks" },
    ...list.map(([good, text]) =>
      element("li", {}, element("span", { class: `sign ${good ? "" : "bad"}`, text: good ? "✓" : "✗" }), element("span", { text })),
    ),
  );
}
