// @ts-check
// What a cache would lose that keeps only the first keys and the latest: for every head and size of window.

import { last } from "../data/arrays.js";
import { chart } from "../parts/chart.js";
import { latest, rampBar, slider } from "../parts/controls.js";
import { choice, element } from "../parts/dom.js";
import { bytes, percent, some } from "../data/format.js";
import { headTable } from "../parts/head_table.js";
import { doubts } from "../data/layers.js";
import { cacheSize, generationLoss, lossCurve, lossOf, meanOf } from "./losses.js";

const LIGHT = 0.05; // a loss below this hardly counts

/** The section on eviction. `generated()` gives the generation, if there is one. */
export class EvictionPolicy {
  /**
   * @param {App} app
   * @param {() => Generated | null} generated
   */
  constructor(app, generated) {
    this.app = app;
    this.generated = generated;
    this.state = app.state;
    /** @type {Eviction[]} */
    this.tables = []; // of every layer, in order, as they come
    this.text = -1; // that they are of
    this.window = slider("Latest keys kept", (n) => app.set({ cacheWindow: n }));
    this.sinks = slider("First keys kept", (n) => app.set({ cacheSinks: n }));
    const sources = { text: "this text", generation: "the generated text" };
    this.on = choice("Measured on", "policy-on", sources, (value) => app.set({ measuredOn: value }));
    this.table = headTable("Eviction loss of every head", (layer, head) =>
      app.set({ layer, head, view: "map" }),
    );
    this.ramp = rampBar();
    this.doubt = element("p", { class: "note heads-warning" });
    this.said = element("p", { class: "note", "aria-live": "polite" });
    this.more = element("p", { class: "note" });
    this.curve = chart(240);
    this.fetchAll = latest((fresh, /** @type {number} */ text) => this.fetch(fresh, text));
    this.box = this.layout();
  }

  layout() {
    const { table, ramp, more, doubt, curve } = this;
    return element(
      "section",
      { class: "cache-policy", "aria-label": "Eviction loss" },
      element("h2", { text: "What eviction would lose" }),
      element("p", {
        class: "note",
        text:
          "A cache of bounded size keeps the first few keys and the latest ones, and evicts the others. The eviction loss " +
          "of a head is the attention mass on evicted keys, averaged over the queries that would lose any.",
      }),
      element("div", { class: "fields policy-fields" }, this.window, this.sinks, this.on),
      this.said,
      element("div", { class: "policy-figures" }, element("div", {}, table, ramp, more, doubt), curve),
    );
  }

  /** The size of cache that is chosen. */
  get size() {
    return cacheSize(this.tables[0], this.state);
  }

  /** @param {State} state */
  show(state) {
    this.state = state;
    if (this.text !== state.text) this.fetchAll(state.text);
    else this.draw();
  }

  /**
   * Fetches the tables of all layers, and draws now and then.
   * @param {() => boolean} fresh
   * @param {number} text
   */
  async fetch(fresh, text) {
    this.text = text;
    this.tables = [];
    const { layers } = this.app.meta.texts[text];
    for (const [n, layer] of layers.entries()) {
      this.said.textContent = `Computing layer ${n + 1} of ${layers.length}…`;
      const table = await this.app.source.eviction(text, layer.key);
      if (!fresh()) return;
      this.tables.push(table);
      if (n + 1 === layers.length || n % 4 === 3) this.draw();
    }
  }

  draw() {
    const generated = this.generated();
    this.on.hidden = !generated;
    const fromText = !generated || this.state.measuredOn !== "generation";
    this.on.value = fromText ? "text" : "generation";
    this.doubt.textContent = fromText ? doubts(this.app.meta.texts[this.text].layers) : "";
    this.doubt.hidden = !this.doubt.textContent;
    this.window.hidden = this.sinks.hidden = !fromText;
    if (!fromText) this.drawGeneration(generated);
    else if (this.tables.length) this.drawText();
  }

  drawText() {
    const { tables, size } = this;
    const { layers } = this.app.meta.texts[this.text];
    this.window.fill(tables[0].windows, size.window);
    this.sinks.fill(tables[0].sinks, size.sinks);
    const loss = (/** @type {number} */ y, /** @type {number} */ x) => lossOf(tables[y], x, size);
    this.paint(layers, loss);
    const losses = layers.flatMap((layer, y) => layer.heads.map((_, x) => loss(y, x)));
    const ahead = tables.some((table) => table.ahead);
    this.said.textContent = ahead
      ? "Not all layers are causal, so there is no cache to evict keys from."
      : lossSentence(losses, size);
    this.curve.hidden = ahead || tables[0].windows.length < 2;
    this.curve.draw(curveChart(tables, size));
    const { queries } = tables[0];
    const { rows } = layers[0];
    this.more.textContent =
      queries < rows ? `Computed on ${queries} of ${rows.toLocaleString("en")} queries, evenly spaced.` : "";
  }

  /** @param {Generated} generated */
  drawGeneration({ steps, start }) {
    this.curve.hidden = true;
    const layers = Array.from({ length: start.layers }, (_, y) => ({
      key: String(y),
      heads: steps[0].lost[y].map((_, x) => x),
    }));
    this.paint(layers, (y, x) => generationLoss(steps, y, x));
    const { cache_bytes, policy_bytes, position } = last(steps);
    this.said.textContent =
      `The mean over ${some(steps.length, "generated token")}, for a cache of ${some(start.sinks, "first key")} and the ` +
      `latest ${start.window}. It would hold ${bytes(policy_bytes)} instead of ${bytes(cache_bytes)}.`;
    this.more.textContent =
      position <= start.window + start.sinks
        ? "The text still fits into this cache, so nothing is evicted yet."
        : "";
  }

  /**
   * @param {{ key: string, heads: number[] }[]} layers
   * @param {(y: number, x: number) => number | null} value
   */
  paint(layers, value) {
    const brief = (/** @type {number} */ x) => (x < 0.005 ? "·" : String(Math.round(100 * x)));
    this.table.fill(layers, { top: 1, value, say: percent, brief });
    this.ramp.show("0%", "100%");
  }
}

/**
 * What the heads of a text would lose, as a sentence.
 * @param {(number | null)[]} losses
 * @param {CacheSize} size
 */
function lossSentence(losses, { window, sinks }) {
  const mean = meanOf(losses);
  if (mean === null) return "The text fits into this cache, so nothing would be evicted.";
  const all = losses.filter((x) => x !== null);
  const light = all.filter((x) => x < LIGHT).length;
  return (
    `With a cache of ${some(sinks, "first key")} and the latest ${window}, the heads would lose ${percent(mean)} of their attention on ` +
    `average; ${light} of ${all.length} would lose less than ${percent(LIGHT)}.`
  );
}

/**
 * The mean over all heads at every size of window, beside what it would be if no first keys were kept.
 * @param {Eviction[]} tables
 * @param {CacheSize} size
 * @returns {ChartData}
 */
function curveChart(tables, { window, sinks }) {
  const { windows } = tables[0];
  const without = lossCurve(tables, 0);
  return {
    label: `Mean eviction loss by number of latest keys, from ${windows[0]} to ${windows.at(-1)}`,
    mark: windows.indexOf(window),
    x: {
      title: "latest keys kept",
      low: 0,
      high: windows.length - 1,
      say: (at) => String(windows[at] ?? ""),
    },
    y: {
      title: "eviction loss, mean over all heads",
      low: 0,
      high: Math.max(0.1, ...without.map(([, mean]) => mean ?? 0)),
      say: percent,
    },
    series: [
      { name: "no first keys", kind: "other", points: without },
      ...(sinks ? [{ name: `${sinks} first`, kind: "own", points: lossCurve(tables, sinks) }] : []),
    ],
  };
}
