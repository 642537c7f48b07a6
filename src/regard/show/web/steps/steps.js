// @ts-check
// The whole computation of one row, step by step, with its actual numbers: of the model, or of the small
// example that the four stages share. It knows what `working.py` and `example.py` give.

import { empty, headPicker, latest, select, slider } from "../common/controls.js";
import { badge, choice, element } from "../common/dom.js";
import { layerOf } from "../common/layers.js";
import { short, tokenAt } from "../common/tokens.js";
import { stepList } from "./step_list.js";

const SHOWN = [1, 2, 3, 4, 6, 8, 12]; // strongest keys, besides the first and the query's own

/**
 * @param {HTMLElement} root
 * @param {App} app
 * @returns {View}
 */
export function steps(root, app) {
  const which = choice("Of", "steps-which", { model: "the model", example: "the small example" }, (value) =>
    app.set({ example: value === "example" ? "0" : "", row: -1 }),
  );
  const picker = headPicker(app);
  const stage = select("Stage", (value) => app.set({ example: value }));
  const token = select("Token", (value) => app.set({ row: Number(value) }));
  const place = element("input", {
    type: "number",
    min: 0,
    class: "place-input",
    "aria-label": "Token’s place",
  });
  const placed = element(
    "label",
    { class: "field" },
    element("span", { class: "quiet small", text: "Token" }),
    place,
  );
  const before = element("button", {
    class: "button",
    type: "button",
    text: "←",
    "aria-label": "The token before",
  });
  const after = element("button", {
    class: "button",
    type: "button",
    text: "→",
    "aria-label": "The token after",
  });
  const shown = slider("Strongest keys", (n) => {
    strongest = n;
    draw();
  });
  const page = element("div", { class: "column" });
  root.append(
    element(
      "div",
      { class: "bar-of-choices" },
      which,
      picker,
      stage,
      token,
      placed,
      element("div", { class: "fields" }, before, after),
      shown,
    ),
    element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "The steps" }, page),
  );
  let strongest = 4;
  /** @type {State} */
  let state;
  /** @type {FoundSteps | null} */
  let found = null; // {work, tokens: {query, key(j)}, example}

  const count = () =>
    state.example ? app.meta.example.tokens.length : layerOf(app.meta, state.text, state.layer).rows;
  const row = () => (state.row >= 0 && state.row < count() ? state.row : state.example ? 1 : count() - 1);
  /** @param {number} by */
  const step = (by) => app.set({ row: Math.min(count() - 1, Math.max(0, row() + by)) });
  before.addEventListener("click", () => step(-1));
  after.addEventListener("click", () => step(1));
  place.addEventListener("change", () =>
    app.set({ row: Math.min(count() - 1, Math.max(0, Math.round(Number(place.value)) || 0)) }),
  );

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

  /** @returns {Promise<FoundSteps>} */
  async function ofModel() {
    const layer = layerOf(app.meta, state.text, state.layer);
    const at = row();
    const { text, layer: own, head } = state;
    const [work, weights] = await Promise.all([
      app.source.steps(text, own, head, at),
      app.source.row(text, own, head, at),
    ]);
    /** @param {number} j */
    const key = (j) => tokenAt(app.meta, state.text, layer, "keys", j);
    const name = tokenAt(app.meta, state.text, layer, "queries", at);
    return { work, layer, name, key, example: null, sum: weights.reduce((total, w) => total + w, 0) };
  }

  /** @returns {FoundSteps} */
  function small() {
    const { tokens, stages } = app.meta.example;
    const [n, h] = state.example.split(".").map(Number);
    const one = stages[n] ?? stages[0];
    const work = (one.heads[h || 0] ?? one.heads[0])[row()];
    const sum = work.keys.reduce((total, one) => total + one.weight, 0);
    return { work, layer: null, name: tokens[row()], key: (j) => tokens[j], example: one, sum };
  }

  function draw() {
    if (!found) return;
    const { work, example } = found;
    const keys = pick(work.keys, example ? Infinity : strongest, work.position);
    const rest = 1 - keys.reduce((sum, key) => sum + key.weight, 0);
    const context = { ...found, keys, rest: Math.max(0, work.sum - (1 - rest)), app, state };
    const list = element("ol", { class: "steps-list" });
    stepList(context).forEach(({ title, about, shape, body }, n) => {
      list.append(
        element(
          "li",
          { class: "step" },
          element(
            "div",
            {},
            element(
              "div",
              { class: "step-name" },
              element("span", { class: "nth", text: n + 1 }),
              element("h2", { text: title }),
            ),
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
  /** @param {Event} event */
  const light = (event) => {
    const target = event.target instanceof Element ? event.target.closest("[data-key]") : null;
    const key = target?.getAttribute("data-key");
    for (const one of page.querySelectorAll("[data-key]"))
      one.classList.toggle("alike", one.getAttribute("data-key") === key);
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
      place.value = String(row());
      place.max = String(count() - 1);
      before.disabled = row() <= 0;
      after.disabled = row() >= count() - 1;
      if (state.example) {
        const options = example.stages.flatMap((one, n) =>
          one.heads.map((_, h) =>
            one.heads.length > 1 ? [`${n}.${h}`, `${one.name}, head ${h + 1}`] : [`${n}`, one.name],
          ),
        );
        stage.fill(options, state.example);
        token.fill(
          example.tokens.map((name, i) => [String(i), name]),
          row(),
        );
      }
      shown.fill(SHOWN, strongest);
      look();
    },
    hide() {},
  };
}

/**
 * The strongest keys, with the first and the query's own, in order.
 * @param {KeySteps[]} keys
 * @param {number} strongest
 * @param {number} position
 */
function pick(keys, strongest, position) {
  if (keys.length <= strongest) return keys;
  const best = new Set([...keys].sort((a, b) => b.weight - a.weight).slice(0, strongest));
  return keys.filter((key) => best.has(key) || key.key === 0 || key.key === position);
}

/** @param {StepContext} context */
function intro({ work, layer, name, example, state }) {
  const head = element("div", { class: "steps-intro" });
  if (example) {
    head.append(
      element(
        "p",
        { class: "lead" },
        `${example.name} attention, for `,
        element("span", { class: "token", text: name }),
        ".",
      ),
      element("p", {
        class: "note",
        text: `${example.about} Six tokens of three numbers each; every number here comes from regard.stages.`,
      }),
    );
    return head;
  }
  if (!layer) return head;
  head.append(
    element(
      "p",
      { class: "lead" },
      "What ",
      element("span", { class: "token", text: short(name, 24) }),
      `, token ${(layer.queries_from ?? work.position - work.row) + work.row}, looks at in layer ` +
        `${layer.key}, head ${state.head}.`,
    ),
  );
  const text = layer.evidence.text.replace(/^(not )?certified:? ?/, "");
  const proof = element("p", { class: "note" }, badge(layer.evidence), ` ${text}`);
  head.append(proof);
  return head;
}
