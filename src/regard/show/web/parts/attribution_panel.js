// @ts-check
// Where the logit of a predicted token comes from: the embedding, every head, every MLP, and their sum.

import { latest } from "./controls.js";
import { element, termList } from "./dom.js";
import { brief, number } from "../data/format.js";
import { headTable } from "./head_table.js";
import { short } from "../data/tokens.js";

/** The panel; it is hidden where the quantity is not a contribution. */
export class AttributionPanel {
  /** @param {App} app */
  constructor(app) {
    this.app = app;
    this.title = element("h3");
    this.about = element("p.small.quiet");
    const words = ["heads", "MLP"].map((text) => element("span", text));
    this.names = element("div.attribution-names.small.quiet", { "aria-hidden": "true" }, ...words);
    this.table = headTable("What each head adds to the logit", (layer, head) => app.set({ layer, head }));
    this.sum = element("dl.logit-sum");
    this.box = element(
      "div.notes-block.attribution",
      { hidden: true },
      this.title,
      this.about,
      this.names,
      this.table,
      this.sum,
    );
    this.draw = latest(this.fill.bind(this));
  }

  /** @param {Quantity} quantity */
  show(quantity) {
    this.box.hidden = quantity.shade !== "logit";
    this.draw(quantity);
  }

  /**
   * @param {() => boolean} fresh
   * @param {Quantity} quantity
   */
  async fill(fresh, quantity) {
    if (quantity.shade !== "logit") return;
    const { app } = this;
    const { state } = app;
    const found = await app.source.attribution(state.text, quantity.position, quantity.token);
    if (!fresh()) return;
    const { layers, tokens, predicted } = app.meta.texts[state.text];
    const name = `“${short(found.token.token, 24)}”`;
    const after = tokens ? ` after “${short(tokens[found.position] ?? "", 16)}” (${found.position})` : "";
    this.title.textContent = `What speaks for ${name}${after}`;
    this.about.textContent =
      "What each head and MLP adds to the logit, with the final norm as it was. Warm colours raise it, cool ones " +
      `lower it.${predicted?.positions ? " This file holds contributions after this token only." : ""}`;
    const heads = layers.map((layer) => found.heads[layer.key] ?? []);
    const mlps = layers.map((layer) => found.mlps[layer.key] ?? null);
    this.names.style.setProperty("--heads", String(Math.max(...heads.map((row) => row.length))));
    const all = [...heads.flat(), ...mlps.map((value) => value ?? 0)];
    const top = Math.max(1e-6, ...all.map(Math.abs));
    this.table.fill(layers, {
      top,
      signed: true,
      value: (y, x) => heads[y][x],
      say: (value) => signed(value, 3),
      brief: (value) => brief(value, 1),
      chosen: `${state.layer}/${state.head}`,
      beside: { name: "MLP", value: (y) => mlps[y] },
    });
    const total = (/** @type {number[]} */ numbers) => numbers.reduce((sum, value) => sum + value, 0);
    /** @type {Fact[]} */
    const terms = [
      ["embedding", signed(found.embedding)],
      ["all heads", signed(total(heads.flat()))],
      ["all MLPs", signed(total(mlps.map((value) => value ?? 0)))],
      ["rest", signed(found.rest)],
      ["= logit", signed(found.logit)],
    ];
    if (Math.abs(found.rest) < 5e-4) terms.splice(3, 1);
    this.sum.replaceChildren(...termList(terms));
  }
}

/**
 * A number with its sign.
 * @param {number} value
 */
function signed(value, digits = 2) {
  return `${value > 0 ? "+" : ""}${number(value, digits)}`;
}
