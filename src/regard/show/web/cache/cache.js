// @ts-check
// The Cache view: what a cache of bounded size keeps of the attention of every head, by policy and by budget.
// It draws the tables of `retention.py`, which Python measures as `seen.retained` does.

import { last } from "../data/arrays.js";
import { doubts, layerOf } from "../data/layers.js";
import { count, some } from "../data/format.js";
import { chart } from "../parts/chart.js";
import { latest, rampBar, select } from "../parts/controls.js";
import { element, makeButton } from "../parts/dom.js";
import { headTable } from "../parts/head_table.js";
import { exportMenu } from "../picture/menu.js";
import { viewFigure } from "../picture/figure.js";
import { textWords } from "../picture/words.js";
import { PageView } from "../view.js";
import {
  firstMeasured,
  retainedSentence,
  meanShares,
  neededPlace,
  ownPolicies,
  policySentence,
  retentionChart,
  retentionRows,
  sharesOf,
} from "./retention.js";

const ABOUT =
  "A cache of bounded size evicts keys, and a policy chooses which. Each cell is the smallest cache, in keys, with " +
  "which a head keeps 95% of its attention. Shares are of the full run, in which nothing was evicted.";

export class CacheView extends PageView {
  /** @param {ViewPlace} place */
  constructor(...place) {
    super(...place);
    const { root, app } = this;
    /** @type {(LayerRetention | undefined)[]} */
    this.tables = []; // of the layers, in order, as they come
    this.text = -1; // that they are of
    this.failure = "";
    this.which = select("Policy", (value) => app.set({ cachePolicy: value }));
    this.save = exportMenu(app, {
      name: () => "cache",
      picture: async () => viewFigure([this.column], textWords(app, "what a cache keeps", app.state.text)),
      table: () => retentionRows(app.meta.texts[this.text].layers, this.tables),
    });
    this.lead = element("p.lead", { "aria-live": "polite" });
    this.said = element("p.note", { role: "status" });
    this.table = headTable("Keys that every head needs", (layer, head) => app.set({ layer, head }), {
      numbered: true,
    });
    this.ramp = rampBar();
    this.without = element("p.note");
    this.doubt = element("p.note.heads-warning");
    this.title = element("h2");
    this.head = element("p.note", { "aria-live": "polite" });
    this.lines = chart(260, (policy) => this.choose(policy));
    this.means = chart(260, (policy) => this.choose(policy));
    this.figures = this.layout();
    this.about = element("p.note", ABOUT);
    this.column = element("div.column", this.lead, this.about, this.said, this.figures);
    root.append(
      element("div.bar-of-choices", this.which, this.save),
      element("div.scroll", { tabindex: "-1" }, this.column),
    );
    this.fetchAll = latest((fresh, /** @type {number} */ text) => this.fetch(fresh, text));
  }

  layout() {
    const open = makeButton("Open in Map", () => this.app.set({ view: "map" }));
    open.dataset.offPaper = "";
    const heading = element("div.retention-heading", this.title, open);
    const needs = element("h2", "Keys that each head needs");
    return element(
      "div.retention-grid",
      element("section", needs, this.table, this.ramp, this.without, this.doubt),
      element("section.retention-head", heading, this.head, this.lines),
      element("section", element("h2", "All heads"), this.means),
    );
  }

  /** @param {string} policy */
  choose(policy) {
    if (policy !== "random" && policy !== "best") this.app.set({ cachePolicy: policy });
  }

  /** The policy that is shown. */
  get policy() {
    const table = firstMeasured(this.tables);
    const own = table ? ownPolicies(table) : [];
    return own.includes(this.state.cachePolicy) ? this.state.cachePolicy : (own[0] ?? "");
  }

  /** @param {State} state */
  show(state) {
    this.state = state;
    if (this.text !== state.text) this.fetchAll(state.text);
    else this.draw();
  }

  /**
   * Fetches the tables of all layers, and draws each as it comes.
   * @param {() => boolean} fresh
   * @param {number} text
   */
  async fetch(fresh, text) {
    this.text = text;
    const { layers } = this.app.meta.texts[text];
    this.tables = layers.map(() => undefined);
    this.failure = "";
    this.draw();
    for (const [n, { key }] of layers.entries()) {
      this.said.textContent = `Measuring layer ${n + 1} of ${layers.length}…`;
      try {
        const table = await this.app.source.retained(text, key);
        if (!fresh()) return;
        this.tables[n] = table;
      } catch (error) {
        if (!fresh()) return;
        this.failure = error.message;
        break;
      }
      this.draw();
    }
    this.said.textContent = "";
    this.draw();
  }

  draw() {
    const { tables, state, policy } = this;
    const measured = firstMeasured(tables);
    const { layers, removed } = this.app.meta.texts[this.text];
    if (removed) return; // an edited run that was undone meanwhile has no layers any more
    const whys = tables.flatMap((table) => table?.why ?? []);
    const done = tables.every(Boolean);
    for (const part of [this.which, this.save, this.about, this.figures]) part.hidden = !measured;
    this.lead.textContent = this.failure || (done ? policySentence(tables, policy) || whys[0] : "");
    if (!measured) return;
    const { budgets, tokens } = measured;
    this.which.fill(ownPolicies(measured), policy);
    const chosen = layerOf(this.app.meta, this.text, state.layer);
    this.table.fill(layers, {
      top: budgets.length,
      value: (y, x) => neededPlace(tables[y], policy, x),
      say: (place) =>
        place < budgets.length
          ? `95% with ${some(budgets[place], "key")}`
          : `less than 95% with ${some(last(budgets), "key")}`,
      brief: (place) => (place < budgets.length ? count(budgets[place]) : "more"),
      chosen: `${chosen.key}/${state.head}`,
    });
    this.ramp.show(some(budgets[0], "key"), `more than ${count(last(budgets))}`);
    const part = tokens < layers[0].rows ? [`Measured on the first ${count(tokens)} tokens.`] : [];
    this.without.textContent = [...part, ...whys].join(" ");
    this.doubt.textContent = doubts(layers);
    this.doubt.hidden = !this.doubt.textContent;
    this.drawHead(chosen, policy);
    const shares = (/** @type {string} */ name) => meanShares(tables, name);
    this.means.draw(retentionChart({ table: measured, policy, of: "all heads on average", shares }));
  }

  /**
   * @param {Layer} layer
   * @param {string} policy
   */
  drawHead(layer, policy) {
    const { layers } = this.app.meta.texts[this.text];
    const table = this.tables[layers.indexOf(layer)];
    const at = Math.max(0, layer.heads.indexOf(this.state.head));
    this.title.textContent = `Layer ${layer.key}, head ${layer.heads[at]}`;
    this.lines.hidden = !table?.budgets;
    this.head.textContent = table?.budgets ? retainedSentence(table, policy, at) : (table?.why ?? "");
    if (!table?.budgets) return;
    this.lines.draw(
      retentionChart({
        table,
        policy,
        of: `layer ${layer.key}, head ${layer.heads[at]}`,
        shares: (name) => sharesOf(table, name, at),
        mark: neededPlace(table, policy, at) ?? undefined,
      }),
    );
  }
}
