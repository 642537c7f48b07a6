// @ts-check
// The whole model at a glance: one score of every head, layer by layer, before any card. It fills in as the layers
// come; the head that is pointed at is described beside it.

import { rampBar, select } from "../parts/controls.js";
import { element } from "../parts/dom.js";
import { briefScore, isShare, score } from "../data/format.js";
import { labelTags, labelWords } from "../parts/head_words.js";
import { headTable } from "../parts/head_table.js";
import { layerOf } from "../data/layers.js";
import { scoreAbout, scoreTitle } from "../data/score_words.js";
import { settings, WHOLE } from "../data/settings.js";
import { paintHead } from "../parts/map_scale.js";
import { theme } from "../parts/theme.js";
import { headName, highestRow, matrixScore } from "./order.js";
import { namesOf } from "./scores.js";

/** The matrix with the words around it. */
export class ScoreMatrix {
  /** @param {App} app */
  constructor(app) {
    this.app = app;
    this.state = app.state;
    /** @type {HeadScores[]} */
    this.heads = []; // that have come
    this.which = select("Score", (headScore) => app.set({ headScore }));
    this.title = element("h2");
    this.about = element("p.note");
    this.table = headTable(
      "One score of every head: choose one to open it in the Map",
      (layer, head) => app.set({ view: "map", layer, head, ...WHOLE }),
      { numbered: true },
    );
    this.ramp = rampBar();
    this.portrait = new HeadPortrait(app);
    const line = element("div.score-choice", this.which, this.about);
    const table = element("div.score-table", this.table, this.ramp);
    const body = element("div.score-matrix-body", table, this.portrait.box);
    const label = { class: "score-matrix", "aria-label": "One score of every head" };
    this.box = element("section", label, this.title, line, body);
    for (const kind of ["pointerover", "focusin"])
      this.table.addEventListener(kind, (event) => this.point(event.target));
    this.table.addEventListener("pointerleave", () => this.describe());
  }

  /**
   * @param {State} state
   * @param {HeadScores[]} heads as many as have come
   */
  show(state, heads) {
    [this.state, this.heads] = [state, heads];
    const names = namesOf(heads);
    const name = matrixScore(state.headScore, names);
    this.which.fill(names, name, scoreTitle);
    const best = highestRow(heads, name);
    const top = Math.max(isShare(name) ? 0.1 : 1e-9, best?.scores[name].value ?? 0);
    const rows = new Map(heads.map((row) => [headName(row), row]));
    const { layers } = this.app.meta.texts[state.text];
    this.table.fill(layers, {
      top,
      value: (y, x) => {
        const row = rows.get(`${layers[y].key}/${layers[y].heads[x]}`);
        return row && (row.scores[name]?.value ?? null); // undefined while it is computed
      },
      isCut: (layer, head) => this.app.runs.has({ kind: "head", layer, head }),
      say: (x) => score(name, x),
      brief: (x) => briefScore(name, x),
      about: (layer, head) => {
        const row = rows.get(`${layer}/${head}`);
        return row ? `${labelWords(row)}. ${row.sentence ?? ""}` : "";
      },
      chosen: best ? headName(best) : "", // which the title names
    });
    this.ramp.show(score(name, 0), score(name, top));
    const all = layers.reduce((sum, layer) => sum + layer.heads.length, 0);
    const isWhole = heads.length === all;
    this.title.textContent = heads.length ? titleOf(name, best, isWhole) : "Scoring the heads…";
    const uniform = best?.scores[name].null;
    const baseline =
      uniform === null || uniform === undefined ? "" : ` Uniform attention: ${score(name, uniform)}.`;
    this.about.textContent = `${scoreAbout(name)}${baseline}`;
    this.describe();
  }

  /** @param {EventTarget | null} target */
  point(target) {
    const cell = target instanceof HTMLElement ? target.closest("[data-head]") : null;
    if (!cell) return;
    const name = cell.getAttribute("data-head");
    this.portrait.show(
      this.state.text,
      this.heads.find((row) => headName(row) === name),
    );
  }

  /** Describes the head with the highest score, until another is pointed at. */
  describe() {
    const name = matrixScore(this.state.headScore, namesOf(this.heads));
    this.portrait.show(this.state.text, highestRow(this.heads, name));
  }
}

/**
 * @param {string} name
 * @param {HeadScores | undefined} best
 * @param {boolean} isWhole whether every head has been scored
 */
function titleOf(name, best, isWhole) {
  if (!best) return "No head has a score: its tokens are unknown.";
  const { layer, head, scores } = best;
  return `Layer ${layer}, head ${head} scores highest on ${scoreTitle(name)}${isWhole ? "" : " so far"}: ${score(name, scores[name].value)}.`;
}

/** A head beside the matrix: its picture, its labels, its sentence. */
class HeadPortrait {
  /** @param {App} app */
  constructor(app) {
    this.app = app;
    this.canvas = element("canvas", { width: settings.thumb, height: settings.thumb, "aria-hidden": "true" });
    this.name = element("h3");
    this.tags = element("span.tags");
    this.sentence = element("p.head-sentence");
    const words = element("div", this.name, this.tags, this.sentence);
    this.box = element("div.portrait", this.canvas, words);
    this.shown = "";
  }

  /**
   * @param {number} text
   * @param {HeadScores | undefined} row
   */
  async show(text, row) {
    const name = row ? `${theme()} ${text} ${row.layer} ${row.head}` : "";
    this.box.hidden = !row;
    if (!row || name === this.shown) return;
    this.shown = name;
    this.name.textContent = `Layer ${row.layer}, head ${row.head}`;
    this.tags.replaceChildren(...labelTags(row));
    this.sentence.textContent = row.sentence ?? "";
    const layer = layerOf(this.app.meta, text, row.layer);
    const thumbs = await this.app.source.thumbs(text, row.layer);
    if (name === this.shown) paintHead(this.canvas, thumbs, layer, row.head);
  }
}
