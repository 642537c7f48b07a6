// @ts-check
// The whole computation of one row, step by step, with its actual numbers: of the model, or of the small
// example that the stages share. It knows what `row_steps.py` and `stage_example.py` give.

import { empty, headPicker, latest, select, slider, foldedSettings } from "../parts/controls.js";
import { badge, choice, element, makeButton } from "../parts/dom.js";
import { headSentence } from "../parts/head_words.js";
import { clamp } from "../data/arrays.js";
import { layerOf } from "../data/layers.js";
import { axisOf, labelAt, short, tokenAt } from "../data/tokens.js";
import { exportMenu } from "../picture/menu.js";
import { edgeStrip } from "./edge_strip.js";
import { viewFigure } from "../picture/figure.js";
import { headWords, titleOnly } from "../picture/words.js";
import { PageView } from "../view.js";
import { exampleSteps, explainedRow, hiddenWeight, keyRows, shownKeys, stageOptions } from "./selection.js";
import { stepList } from "./step_list.js";

const SHOWN = [1, 2, 3, 4, 6, 8, 12]; // strongest keys, besides the first and the query's own

export class StepsView extends PageView {
  /** @param {ViewPlace} place */
  constructor(...place) {
    super(...place);
    const { root, app } = this;
    this.strongest = 4; // keys that are shown
    /** @type {FoundSteps | null} */
    this.found = null;
    this.page = element("div.column");
    this.controls = makeStepsControls(this);
    this.words = headSentence(app);
    this.look = latest((fresh) => this.find(fresh));
    this.page.addEventListener("pointerover", (event) => this.light(event));
    this.page.addEventListener("pointerleave", (event) => this.light(event));
    const save = exportMenu(app, {
      name: () => {
        const { example, layer, head } = this.state;
        return `${example ? "example" : `layer-${layer}-head-${head}`}-row-${this.row}`;
      },
      picture: async () => viewFigure([this.page], await this.paperWords()),
      table: () => keyRows(this.found),
    });
    this.controls.bar.append(save);
    const scroll = { class: "scroll", tabindex: "0", role: "region", "aria-label": "Steps" };
    root.append(this.controls.bar, element("div", scroll, this.page));
  }

  /** @param {number} row to be explained */
  go(row) {
    this.app.set({ row: clamp(row, 0, this.count - 1) });
  }

  /** How many rows there are. */
  get count() {
    return this.state.example ? this.app.meta.example.tokens.length : this.captured.rows;
  }

  get row() {
    return explainedRow(this.state, this.count, this.app.meta.texts[this.state.text].telling);
  }

  /** The words of a figure; notes are on the page itself. */
  async paperWords() {
    const { text, layer, head, example } = this.state;
    if (example) return titleOnly("Attention, step by step");
    return { ...(await headWords(this.app, { text, layer, head })), notes: [] };
  }

  /** @param {State} state */
  show(state) {
    this.state = state;
    this.controls.fill();
    this.look();
  }

  /** @param {() => boolean} fresh */
  async find(fresh) {
    const { app, state, row } = this;
    if (!this.found) this.page.replaceChildren(empty("Computing the steps…"));
    const { example } = app.meta;
    try {
      const found = state.example
        ? exampleSteps(example, state.example, row)
        : await modelSteps(app, state, row);
      if (!fresh()) return;
      this.found = found;
      this.draw();
    } catch (error) {
      if (fresh()) this.page.replaceChildren(empty(error.message));
    }
  }

  draw() {
    const { found, app, state } = this;
    if (!found) return;
    const { work, example } = found;
    const keys = shownKeys(work.keys, example ? Infinity : this.strongest, work.position);
    const context = { ...found, keys, rest: hiddenWeight(work, keys), app, state };
    const list = element("ol.steps-list", ...stepList(context).map(stepItem));
    if (!example) this.words.show();
    this.page.replaceChildren(intro(context, this.words), list);
  }

  /**
   * Lights up the same key in every step.
   * @param {Event} event
   */
  light(event) {
    const target = event.target instanceof Element ? event.target.closest("[data-key]") : null;
    const key = target?.getAttribute("data-key");
    for (const one of this.page.querySelectorAll("[data-key]"))
      one.classList.toggle("alike", one.getAttribute("data-key") === key);
  }
}

/**
 * Why a linear layer has no steps, and which layers have some.
 * @param {Layer[]} layers
 * @param {Layer} layer
 */
function noSteps(layers, { key, recurrence }) {
  const others = layers.filter((one) => !one.recurrence).map((one) => one.key);
  const choose = others.length
    ? ` Choose a layer of softmax attention to see its steps: ${others.join(", ")}.`
    : "";
  return `Layer ${key} has no softmax: its weights come from a recurrence (${recurrence}).${choose}`;
}

/**
 * A row of the model's computation.
 * @param {App} app
 * @param {State} state
 * @param {number} row
 * @returns {Promise<FoundSteps>}
 */
async function modelSteps({ meta, source }, { text, layer: key, head }, row) {
  const layer = layerOf(meta, text, key);
  if (layer.recurrence) throw new Error(noSteps(meta.texts[text].layers, layer));
  const at = /** @type {const} */ ([text, key, head, row]);
  const [work, weights] = await Promise.all([source.steps(...at), source.row(...at)]);
  const [queries, keys] = [axisOf(meta, text, layer, "queries"), axisOf(meta, text, layer, "keys")];
  return {
    work,
    layer,
    name: tokenAt(queries, row),
    key: (j) => tokenAt(keys, j),
    example: null,
    sum: weights.reduce((total, w) => total + w, 0),
  };
}

/**
 * @param {StepEntry} entry
 * @param {number} n
 */
function stepItem({ title, about, shape, body }, n) {
  const name = element("div.step-name", element("span.nth", n + 1), element("h2", title));
  return element(
    "li.step",
    element("div", name, element("p.step-about", about), element("p.step-shape", shape)),
    element("div.step-body", ...body),
  );
}

/** @param {StepsView} view */
function makeStepsControls(view) {
  const { app } = view;
  const which = choice("Row", "steps-which", { model: "the model", example: "the small example" }, (value) =>
    app.set({ example: value === "example" ? "0" : "", row: -1 }),
  );
  const picker = headPicker(app);
  const stage = select("Stage", (value) => app.set({ example: value }));
  const token = select("Token", (value) => app.set({ row: Number(value) }));
  const before = makeButton("←", () => view.go(view.row - 1), { "aria-label": "Previous token" });
  const after = makeButton("→", () => view.go(view.row + 1), { "aria-label": "Next token" });
  const shown = slider("Strongest keys", (strongest) => {
    view.strongest = strongest;
    view.draw();
  });
  const arrows = element("div.fields", before, after);
  const parts = [which, picker, stage, token, arrows, ...foldedSettings(shown)];
  return {
    bar: element("div.bar-of-choices", ...parts),
    /** Shows what is chosen. */
    fill() {
      const { state, row, count, captured } = view;
      const { example } = app.meta;
      which.value = state.example ? "example" : "model";
      picker.show();
      for (const part of [picker, shown]) part.hidden = Boolean(state.example);
      stage.hidden = !state.example;
      before.disabled = row <= 0;
      after.disabled = row >= count - 1;
      shown.fill(SHOWN, view.strongest);
      const queries = axisOf(app.meta, state.text, captured, "queries");
      const names = state.example
        ? example.tokens
        : Array.from({ length: count }, (_, i) => labelAt(queries, i, 16));
      token.fill(
        names.map((name, i) => [String(i), `${name} (${i})`]),
        row,
      );
      if (state.example) stage.fill(stageOptions(example), state.example);
    },
  };
}

/**
 * @param {StepContext} context
 * @param {HTMLElement} words what the head does
 */
function intro(context, words) {
  const { work, layer, name, example, state } = context;
  const head = element("div.steps-intro");
  if (example) {
    head.append(
      element("p.lead", `Stage ${example.name}: the row of `, element("span.token", name), "."),
      element(
        "p.note",
        `${example.about} The example has six tokens of three numbers each. Every number comes from regard.stages.`,
      ),
    );
    return head;
  }
  if (!layer) return head;
  head.append(
    element(
      "p.lead",
      `How layer ${layer.key}, head ${state.head} computes what `,
      element("span.token", short(name, 24)),
      `, token ${(layer.queries_from ?? work.position - work.row) + work.row}, attends to.`,
    ),
    edgeStrip(context),
  );
  const text = layer.evidence.text.replace(/^(not )?certified:? ?/, "");
  const proof = element("p.note", badge(layer.evidence), ` ${text}`);
  head.append(words, proof);
  return head;
}
