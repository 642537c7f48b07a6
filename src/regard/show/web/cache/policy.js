// @ts-check
// What a cache would lose that keeps only the first keys and the latest: for every head and size of window.

import { last } from "../common/arrays.js";
import { chart } from "../common/chart.js";
import { latest, rampBar, slider } from "../common/controls.js";
import { choice, element } from "../common/dom.js";
import { bytes, share, some, weight } from "../common/format.js";
import { heatmap } from "../common/heatmap.js";
import { doubts } from "../common/layers.js";

/**
 * Fills `root`; `generated()` gives {steps, start} of a generation, or null. Returns {show(state), chosen()}.
 * @param {HTMLElement} root
 * @param {App} app
 * @param {() => Generated | null} generated
 */
export function policy(root, app, generated) {
  const window = slider("Latest keys kept", (n) => app.set({ cacheWindow: n }));
  const sinks = slider("First keys kept", (n) => app.set({ cacheSinks: n }));
  const on = choice(
    "Measured on",
    "policy-on",
    { text: "this text", generation: "what was written" },
    (value) => app.set({ measuredOn: value }),
  );
  const table = heatmap("Attention that would be lost, for every head", (layer, head) =>
    app.set({ layer, head, view: "map" }),
  );
  const ramp = rampBar();
  const doubt = element("p", { class: "note heads-warning" });
  const said = element("p", { class: "note", "aria-live": "polite" });
  const more = element("p", { class: "note" });
  const curve = chart(240);
  root.append(
    element("h2", { text: "If the cache forgot" }),
    element("p", {
      class: "note",
      text:
        "A smaller cache keeps the first few keys and the latest ones. This is the share of each head’s attention " +
        "that falls on the keys it would have dropped: the mean over the queries that would lose any.",
    }),
    element("div", { class: "fields policy-fields" }, window, sinks, on),
    said,
    element("div", { class: "policy-figures" }, element("div", {}, table, ramp, more, doubt), curve),
  );
  /** @type {State} */
  let state;
  /** @type {Eviction[]} */
  let tables = []; // the table of every layer, in order
  let of = -1; // the text that they are of

  const fetchAll = latest(async (fresh, /** @type {number} */ text) => {
    of = text;
    tables = [];
    const { layers } = app.meta.texts[text];
    for (const [n, layer] of layers.entries()) {
      said.textContent = `Working it out: layer ${n + 1} of ${layers.length}…`;
      const found = await app.source.eviction(text, layer.key);
      if (!fresh()) return;
      tables.push(found);
      if (n + 1 === layers.length || n % 4 === 3) draw();
    }
  });

  /**
   * @param {number[]} values
   * @param {number} wanted
   * @param {number} usual
   */
  const at = (values, wanted, usual) => {
    const given = wanted >= 0 ? wanted : usual;
    return values.reduce(
      (best, one) => (Math.abs(one - given) < Math.abs(best - given) ? one : best),
      values[0] ?? given,
    );
  };

  function chosen() {
    const first = tables[0];
    const usual = first?.windows.length ? first.windows[Math.floor(first.windows.length / 2)] : 64;
    const fits = at(first?.windows ?? [], state?.cacheWindow ?? -1, Math.min(64, usual));
    return { window: fits, sinks: at(first?.sinks ?? [], state?.cacheSinks ?? -1, 4) };
  }

  function draw() {
    const written = generated();
    on.hidden = !written;
    const fromText = !written || state.measuredOn !== "generation";
    on.value = fromText ? "text" : "generation";
    doubt.textContent = fromText ? doubts(app.meta.texts[of].layers) : "";
    doubt.hidden = !doubt.textContent;
    window.hidden = sinks.hidden = !fromText;
    if (fromText) ofText();
    else ofGeneration(written);
  }

  function ofText() {
    const { layers } = app.meta.texts[of];
    if (!tables.length) return;
    const { window: w, sinks: s } = chosen();
    window.fill(tables[0].windows, w);
    sinks.fill(tables[0].sinks, s);
    /**
     * @param {number} y
     * @param {number} x
     */
    const lost = (y, x) => {
      const one = tables[y];
      return one && !one.ahead ? (one.lost[x][one.windows.indexOf(w)]?.[one.sinks.indexOf(s)] ?? null) : null;
    };
    const all = layers.flatMap((layer, y) => layer.heads.map((_, x) => lost(y, x))).filter((x) => x !== null);
    paint(layers, lost);
    const ahead = tables.some((one) => one.ahead);
    if (ahead) said.textContent = "These layers look ahead as well, so there is no cache that could forget.";
    else if (!all.length) said.textContent = "The text is shorter than this cache, so nothing would be lost.";
    else {
      const mean = all.reduce((a, b) => a + b, 0) / all.length;
      const light = all.filter((x) => x < 0.05).length;
      said.textContent =
        `Keeping ${some(s, "first key")} and the latest ${w}, the heads would lose ${weight(mean)} on average; ` +
        `${light} of ${all.length} would lose less than 0.05.`;
    }
    drawCurve(w, s);
    const looked = tables[0].queries;
    const { rows } = layers[0];
    more.textContent =
      looked < rows ? `Looked at ${looked} of ${rows.toLocaleString("en")} queries, evenly chosen.` : "";
  }

  /**
   * The mean over all heads at every size of window, beside what it would be if no first keys were kept.
   * @param {number} w
   * @param {number} s
   */
  function drawCurve(w, s) {
    const { windows, sinks } = tables[0];
    /**
     * @param {number} at
     * @param {number} first
     */
    const mean = (at, first) => {
      const all = tables.flatMap((one) => one.lost.map((head) => head[at]?.[sinks.indexOf(first)] ?? null));
      const found = all.filter((x) => x !== null);
      return found.length ? found.reduce((a, b) => a + b, 0) / found.length : null;
    };
    /**
     * @param {number} first
     * @returns {[number, number | null][]}
     */
    const line = (first) => windows.map((_, at) => [at, mean(at, first)]);
    const high = Math.max(0.1, ...windows.map((_, at) => mean(at, 0) ?? 0));
    curve.hidden = tables.some((one) => one.ahead) || windows.length < 2;
    curve.draw({
      label: `The mean loss by size of window, from ${windows[0]} to ${windows.at(-1)} latest keys`,
      mark: windows.indexOf(w),
      x: {
        title: "latest keys kept",
        low: 0,
        high: windows.length - 1,
        say: (at) => String(windows[at] ?? ""),
      },
      y: { title: "lost, mean over all heads", low: 0, high, say: share },
      series: [
        { name: "no first keys", kind: "other", points: line(0) },
        ...(s ? [{ name: `${s} first`, kind: "own", points: line(s) }] : []),
      ],
    });
  }

  /** @param {Generated} generated */
  function ofGeneration({ steps, start }) {
    curve.hidden = true;
    const layers = Array.from({ length: start.layers }, (_, y) => ({
      key: String(y),
      heads: steps[0].lost[y].map((_, x) => x),
    }));
    paint(layers, (y, x) => steps.reduce((sum, step) => sum + step.lost[y][x], 0) / steps.length);
    const latestStep = last(steps);
    said.textContent =
      `Keeping ${some(start.sinks, "first key")} and the latest ${start.window} while writing: the mean over ` +
      `${some(steps.length, "written token")}. The cache would hold ${bytes(latestStep.held_by_policy)} instead of ` +
      `${bytes(latestStep.held)}.`;
    more.textContent =
      latestStep.position <= start.window + start.sinks
        ? "The text is still shorter than this cache, so nothing is lost yet."
        : "";
  }

  /**
   * @param {{ key: string, heads: number[] }[]} layers
   * @param {(y: number, x: number) => number | null} value
   */
  function paint(layers, value) {
    table.fill(layers, {
      top: 1,
      value,
      say: weight,
      brief: (x) => (x < 0.005 ? "·" : x.toFixed(2).replace(/^0/, "")),
    });
    ramp.show("0", "1");
  }

  return {
    chosen,
    /** @param {State} now */
    show(now) {
      state = now;
      if (of !== state.text) fetchAll(state.text);
      else draw();
    },
  };
}
