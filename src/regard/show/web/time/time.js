// @ts-check
// Heads over a training run: a slider goes from evaluation to evaluation, and every head's score with it.
// It knows what `run.py` reads from a run's folder.

import { known, last } from "../common/arrays.js";
import { chart } from "../common/chart.js";
import { rampBar, select, slider } from "../common/controls.js";
import { choice, element } from "../common/dom.js";
import { count, score, share } from "../common/format.js";
import { heatmap } from "../common/heatmap.js";
import { SCORES, words } from "../heads/scores.js";

/** @type {Record<string, string>} */
const ON = { text: "validation text", repeats: "repeated random tokens" };
const FIRST = ["induction", "previous_token", "normalised_entropy"]; // what a run is asked for most
const TEMPO = 700; // milliseconds at each step while it plays

/**
 * @param {HTMLElement} root
 * @param {App} app
 * @returns {View}
 */
export function time(root, app) {
  const run = /** @type {TrainingRun} */ (app.meta.time); // there is no such view without one
  /** @param {string} on */
  const tableOf = (on) => (on === "text" || on === "repeats" ? run[on] : undefined);
  const on = choice(
    "On",
    "time-on",
    Object.fromEntries(Object.entries(ON).filter(([name]) => tableOf(name))),
    (value) => app.set({ scoredOn: value }),
  );
  const which = select("Score", (value) => app.set({ score: value }));
  const at = slider("Step", (step) => app.set({ trainingStep: step }), count);
  const play = element("button", { class: "button", type: "button", text: "Play" });
  const about = element("p", { class: "note" });
  const ramp = rampBar();
  const table = heatmap("What each head scores at this step", (layer, head) =>
    app.set({ chosenHead: `${layer}/${head}` }),
  );
  const lines = chart(300);
  const losses = chart(200);
  const judging = element("section", {}, element("h2", { text: "How well it predicts" }), losses);
  const sample = element("blockquote", { class: "sample" });
  const sampled = element("section", {}, element("h2", { text: "What it writes" }), sample);
  const title = element("p", { class: "lead", "aria-live": "polite" });
  root.append(
    element("div", { class: "bar-of-choices" }, at, play, on, which),
    element(
      "div",
      { class: "scroll" },
      element(
        "div",
        { class: "column" },
        title,
        about,
        element(
          "div",
          { class: "time-grid" },
          element("section", {}, element("h2", { text: "Every head" }), table, ramp),
          element("section", {}, element("h2", { text: "Over the run" }), lines),
          judging,
          sampled,
        ),
      ),
    ),
  );
  /** @type {ReturnType<typeof setInterval> | undefined} */
  let timer = 0;
  /** @type {State} */
  let state;

  const step = () => {
    const found = run.steps.indexOf(state.trainingStep);
    return found < 0 ? run.steps.length - 1 : found;
  };
  /** @returns {Record<string, ScoreHistory>} */
  const source = () => tableOf(state.scoredOn) ?? run.text ?? run.repeats ?? {};
  const scores = () => {
    const names = Object.keys(source());
    return [
      ...FIRST.filter((name) => names.includes(name)),
      ...names.filter((name) => !FIRST.includes(name)),
    ];
  };
  const name = () => (Object.hasOwn(source(), state.score) ? state.score : scores()[0]);

  function stop() {
    clearInterval(timer);
    timer = 0;
    play.textContent = "Play";
  }
  play.addEventListener("click", () => {
    if (timer) return stop();
    if (step() === run.steps.length - 1) app.set({ trainingStep: run.steps[0] });
    play.textContent = "Pause";
    timer = setInterval(() => {
      const next = step() + 1;
      if (next >= run.steps.length) return stop();
      app.set({ trainingStep: run.steps[next] });
    }, TEMPO);
  });
  at.input.addEventListener("pointerdown", stop);

  /**
   * The least and the most that any head scores during the run, so that the scale stands still.
   * @param {ScoreHistory} found
   */
  function ends(found) {
    const all = found.heads.flat(2).concat(found.null).filter(known);
    const most = Math.max(1e-9, ...all);
    return name() === "distance" || name() === "entropy" ? most : Math.min(1, Math.ceil(most * 10) / 10);
  }

  /**
   * A number at each step of the run.
   * @param {(i: number) => number | null} value
   * @returns {[number, number | null][]}
   */
  const overRun = (value) => run.steps.map((step, i) => [step, value(i)]);

  function draw() {
    const n = step();
    const found = source()[name()];
    const top = ends(found);
    /** @param {number | null} x */
    const say = (x) => score(name(), x);
    const layers = found.heads[0].map((row, y) => ({ key: String(y), heads: row.map((_, x) => x) }));
    const end = strongest(last(found.heads)) ?? { y: 0, x: 0 };
    const asked = state.chosenHead.split("/").map(Number);
    const chosen = found.heads[n][asked[0]]?.[asked[1]] === undefined ? [end.y, end.x] : asked;
    table.fill(layers, {
      top,
      value: (y, x) => found.heads[n][y][x],
      say,
      brief: (x) => (top > 1 ? say(x) : share(x).replace(/^0/, "")),
      chosen: chosen.join("/"),
    });
    ramp.show("0", say(top));
    const [called, meaning] = SCORES[name()] ?? [words(name()), ""];
    about.textContent =
      `${called[0].toUpperCase()}${called.slice(1)}: ${meaning || "a score of each head"}, on ` +
      `${ON[state.scoredOn] ?? ON.text}. A head that looks at all alike scores ${say(found.null[n])}.`;
    const best = strongest(found.heads[n]);
    title.textContent = best
      ? `At step ${count(run.steps[n])} head ${best.x} of layer ${best.y} is the highest, with ${say(best.value)}.`
      : `Step ${count(run.steps[n])}.`;
    lines.draw({
      label:
        `${called} of every head over ${count(last(run.steps))} steps; the chosen head, layer ${chosen[0]} ` +
        `head ${chosen[1]}, ends at ${say(last(found.heads)[chosen[0]][chosen[1]])}`,
      mark: run.steps[n],
      x: axis("step"),
      y: { title: called, low: 0, high: top, say: (x) => (top > 1 ? String(x) : share(x)) },
      series: [
        ...layers.flatMap((layer, y) =>
          layer.heads.map((_, x) => ({
            kind: "faint",
            points: overRun((i) => found.heads[i][y][x]),
          })),
        ),
        { name: "all alike", kind: "null", points: overRun((i) => found.null[i]) },
        {
          name: `head ${chosen.join(".")}`,
          kind: "own",
          points: overRun((i) => found.heads[i][chosen[0]][chosen[1]]),
        },
      ],
    });
    /** @type {[number, number | null][]} */
    const training = run.loss.steps.map((step, i) => [step, run.loss.values[i]]);
    const judged = overRun((i) => run.validation[i]);
    const all = [...training, ...judged].map(([, value]) => value).filter(known);
    judging.hidden = !all.length;
    if (all.length) {
      losses.draw({
        label: `Loss over the run: validation ends at ${share(last(run.validation))} nats`,
        mark: run.steps[n],
        x: axis("step"),
        y: { title: "loss, nats a token", low: 0, high: Math.max(...all), say: String },
        series: [
          { name: training.length ? "training" : "", kind: "null", points: training },
          { name: "validation", kind: "own", points: judged },
        ],
      });
    }
    sampled.hidden = !run.sample[n];
    sample.textContent = run.sample[n];
  }

  /**
   * @param {string} called
   * @returns {ChartAxis}
   */
  const axis = (called) => ({
    title: called,
    low: run.steps[0],
    high: last(run.steps) || 1,
    say: (x) => (x >= 10000 ? `${x / 1000}k` : String(x)),
  });

  return {
    show(now) {
      state = {
        ...now,
        scoredOn: tableOf(now.scoredOn) ? now.scoredOn : run.text ? "text" : "repeats",
      };
      on.value = state.scoredOn;
      which.fill(
        scores().map((one) => [one, SCORES[one]?.[0] ?? words(one)]),
        name(),
      );
      at.fill(run.steps, run.steps[step()]);
      play.disabled = run.steps.length < 2;
      draw();
    },
    hide: stop,
  };
}

/** @param {(number | null)[][]} table */
function strongest(table) {
  /** @type {{ y: number, x: number, value: number } | null} */
  let best = null;
  for (const [y, row] of table.entries()) {
    for (const [x, value] of row.entries()) {
      if (value !== null && (!best || value > best.value)) best = { y, x, value };
    }
  }
  return best;
}
