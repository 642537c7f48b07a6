// @ts-check
// Heads over a training run: a slider goes from evaluation to evaluation, and every head's score with it.
// It knows what `history.py` reads from a run's folder, and `page_curves.py` from the file of a monitor.

import { chart } from "../parts/chart.js";
import { rampBar, select, slider } from "../parts/controls.js";
import { choice, element, makeButton } from "../parts/dom.js";
import { briefScore, count, score } from "../data/format.js";
import { headTable } from "../parts/head_table.js";
import { scoreAbout, scoreTitle } from "../data/score_words.js";
import { exportMenu } from "../picture/menu.js";
import { viewFigure } from "../picture/figure.js";
import { titleOnly } from "../picture/words.js";
import { PageView } from "../view.js";
import {
  chosenRunHead,
  highestHead,
  historyRows,
  historyTop,
  lossChart,
  scoreChart,
  scoreNames,
} from "./curves.js";

/** @type {Record<string, string>} */
const ON = { text: "validation text", repeats: "repeated random tokens", batch: "training batches" };
const TEMPO = 700; // milliseconds at each step while it plays

export class TimeView extends PageView {
  /** @param {ViewPlace} place */
  constructor(...place) {
    super(...place);
    const { root, app } = this;
    this.run = /** @type {TrainingRun} */ (app.meta.time); // there is no such view without one
    /** @type {ReturnType<typeof setInterval> | undefined} */
    this.timer = 0;
    const tables = Object.entries(ON).filter(([name]) => this.tableOf(name));
    this.on = choice("Scored on", "time-on", Object.fromEntries(tables), (value) =>
      app.set({ scoredOn: value }),
    );
    this.which = select("Score", (value) => app.set({ score: value }));
    this.slider = slider("Step", (step) => app.set({ trainingStep: step }), count);
    this.play = makeButton("Play", () => this.togglePlay());
    const heading = () => `${this.run.name || app.meta.model}: ${scoreTitle(this.name)} over training`;
    const save = exportMenu(app, {
      name: () => `training-${this.name}`,
      picture: async () => viewFigure([this.column], titleOnly(heading())),
      table: () => historyRows(this.run.steps, this.scores[this.name]),
    });
    const parts = [this.slider, this.play, this.on, this.which, save];
    const controls = element("div.bar-of-choices", ...parts);
    this.column = element("div.column");
    this.title = element("p.lead", { "aria-live": "polite" });
    this.about = element("p.note");
    this.ramp = rampBar();
    this.table = headTable(
      "Score of every head at this step",
      (layer, head) => app.set({ chosenHead: `${layer}/${head}` }),
      { numbered: true },
    );
    this.lines = chart(300, (head) => app.set({ chosenHead: head }));
    this.nameLine(this.table);
    this.losses = chart(200);
    this.judging = element("section", element("h2", "Loss"), this.losses);
    this.sample = element("blockquote.sample");
    this.sampled = element("section", element("h2", "What the model writes"), this.sample);
    this.slider.input.addEventListener("pointerdown", () => this.stop());
    root.append(controls, this.layout());
  }

  /**
   * Brings out the line of the head whose cell is pointed at or has the focus.
   * @param {HTMLElement} table
   */
  nameLine(table) {
    const point = (/** @type {Event} */ { target }) =>
      this.lines.pointer.point((target instanceof HTMLElement && target.dataset.head) || "");
    for (const name of ["pointerover", "focusin"]) table.addEventListener(name, point);
    for (const name of ["pointerleave", "focusout"])
      table.addEventListener(name, () => this.lines.pointer.point(""));
  }

  layout() {
    const heads = element("section", element("h2", "Every head"), this.table, this.ramp);
    const curves = element("section", element("h2", "Over the run"), this.lines);
    const grid = element("div.time-grid", heads, curves, this.judging, this.sampled);
    const alarms = (this.run.alarms ?? []).map((sentence) => element("li", sentence));
    const warned = alarms.length ? [element("ul.note", { "aria-label": "Alarms" }, ...alarms)] : [];
    this.column.append(this.title, this.about, ...warned, grid);
    return element("div.scroll", this.column);
  }

  /** @param {string} on */
  tableOf(on) {
    return on === "text" || on === "repeats" || on === "batch" ? this.run[on] : undefined;
  }

  /** The scores of the chosen kind. */
  get scores() {
    return this.tableOf(this.state.scoredOn) ?? this.run.text ?? this.run.repeats ?? this.run.batch ?? {};
  }

  /** The name of the chosen score. */
  get name() {
    return Object.hasOwn(this.scores, this.state.score) ? this.state.score : scoreNames(this.scores)[0];
  }

  /** The place of the chosen step among those of the run. */
  get at() {
    const { steps } = this.run;
    const at = steps.indexOf(this.state.trainingStep);
    return at < 0 ? steps.length - 1 : at;
  }

  hide() {
    this.stop();
  }

  stop() {
    clearInterval(this.timer);
    this.timer = 0;
    this.play.textContent = "Play";
  }

  togglePlay() {
    if (this.timer) return this.stop();
    const { steps } = this.run;
    if (this.at === steps.length - 1) this.app.set({ trainingStep: steps[0] });
    this.play.textContent = "Pause";
    this.timer = setInterval(() => {
      const next = this.at + 1;
      if (next >= steps.length) return this.stop();
      this.app.set({ trainingStep: steps[next] });
    }, TEMPO);
  }

  draw() {
    const { run, at, name, state } = this;
    const history = this.scores[name];
    const step = run.steps[at];
    const top = historyTop(name, history);
    const chosen = chosenRunHead(state.chosenHead, history);
    const say = (/** @type {number | null} */ x) => score(name, x);
    this.table.fill(
      history.heads[0].map((row, y) => ({ key: String(y), heads: row.map((_, x) => x) })),
      {
        top,
        value: (y, x) => history.heads[at][y][x],
        say,
        brief: (x) => briefScore(name, x),
        chosen: `${chosen.layer}/${chosen.head}`,
      },
    );
    this.ramp.show("0", say(top));
    const title = scoreTitle(name);
    const scoredOn = `Scored on ${ON[state.scoredOn] ?? ON.text}`;
    const uniform = history.null[at];
    // A monitor measures sampled rows of whatever batch comes, for which there is no baseline.
    const rest = uniform === null ? "" : `; the uniform baseline is ${say(uniform)}`;
    this.about.textContent = `${scoreAbout(name)} ${scoredOn}${rest}.`.trim();
    const best = highestHead(history.heads[at]);
    this.title.textContent = best
      ? `At step ${count(step)}, layer ${best.layer}, head ${best.head} scores highest on ${title}: ${say(best.value)}.`
      : `Step ${count(step)}.`;
    this.lines.draw(scoreChart({ steps: run.steps, history, chosen, name, title, top, say, mark: step }));
    const losses = lossChart(run, step);
    this.judging.hidden = !losses;
    if (losses) this.losses.draw(losses);
    this.sampled.hidden = !run.sample[at];
    this.sample.textContent = run.sample[at];
  }

  /** @param {State} state */
  show(state) {
    const { run } = this;
    const usual = run.text ? "text" : run.repeats ? "repeats" : "batch";
    this.state = { ...state, scoredOn: this.tableOf(state.scoredOn) ? state.scoredOn : usual };
    this.on.value = this.state.scoredOn;
    this.which.fill(scoreNames(this.scores), this.name, scoreTitle);
    this.slider.fill(run.steps, run.steps[this.at]);
    this.play.disabled = run.steps.length < 2;
    this.draw();
  }
}
