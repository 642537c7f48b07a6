// @ts-check
// The notes beside the picture: the chosen token, how its attention divides, the strongest tokens, the outliers.

import { element } from "../parts/dom.js";
import { percent, some } from "../data/format.js";
import { doubts } from "../data/layers.js";
import { strongest } from "../text/ranking.js";
import { scopeName } from "../text/scope.js";
import { heatBar } from "./heat.js";
import { sharesByKind, tokenName } from "./patches.js";

const RANKED = 10; // tokens in the list

/**
 * @typedef {object} ShownAxis
 * @property {string[]} names of the tokens of its list
 * @property {PatchLayout} layout
 * @property {number} from
 */

/**
 * @typedef {object} ImageFindings what there is to say of the chosen token
 * @property {Heat} heat
 * @property {Layer} layer
 * @property {Layer[]} layers that are averaged
 * @property {State} state
 * @property {boolean} looking
 * @property {ShownAxis} mine
 * @property {ShownAxis} theirs
 * @property {Map<number, number>} outliers tokens with their mean weights
 */

/** The notes; `choose(token)` is called when the reader takes one from the list. */
export class ImageNotes {
  /** @param {(token: number) => void} choose */
  constructor(choose) {
    this.choose = choose;
    this.chosen = element("div", { class: "notes-block" });
    this.shares = element("div", { class: "notes-block" });
    this.ranking = element("div", { class: "notes-block" });
    this.marked = element("div", { class: "notes-block" });
    this.ramp = heatBar();
    this.note = element("p", { class: "small quiet text-note" });
    const parts = [this.chosen, this.shares, this.ranking, this.marked, this.note];
    this.box = element("aside", { class: "text-notes", "aria-label": "Selected token" }, ...parts);
  }

  clear() {
    for (const part of [this.shares, this.ranking, this.marked]) part.hidden = true;
    this.chosen.replaceChildren(element("p", { class: "quiet", text: "Nothing is shown of this layer." }));
    this.note.textContent = "";
  }

  /** @param {ImageFindings} findings */
  show(findings) {
    const { heat, layer, layers, state, looking, mine } = findings;
    this.chosen.replaceChildren(
      element("h3", { text: looking ? "Query" : "Key" }),
      element("p", { class: "big-token", text: tokenName(mine, heat.token, 60) }),
      element("p", { class: "small quiet", text: scopeName(state, layer) }),
      this.ramp,
    );
    this.ramp.show("0", percent(heat.top));
    this.showShares(findings);
    this.showRanking(findings);
    this.showOutliers(findings);
    this.note.textContent = doubts(layers);
  }

  /** @param {ImageFindings} findings */
  showShares({ heat, looking, theirs }) {
    const kinds = sharesByKind(heat.weights, heat.from, theirs.layout);
    this.shares.hidden = !looking || kinds.length < 2;
    if (this.shares.hidden) return;
    const rows = kinds.map(({ name, share, uniform }) =>
      element(
        "tr",
        {},
        element("th", { scope: "row", text: name }),
        element("td", { text: percent(share) }),
        element("td", { class: "quiet", text: percent(uniform) }),
      ),
    );
    const head = element(
      "tr",
      {},
      ...["Attention to", "here", "if uniform"].map((text) => element("th", { scope: "col", text })),
    );
    this.shares.replaceChildren(element("table", { class: "shares" }, head, ...rows));
  }

  /** @param {ImageFindings} findings */
  showRanking({ heat, looking, theirs }) {
    this.ranking.hidden = false;
    const { best } = strongest({ ...heat, without: -1 }, RANKED);
    const lines = best.map(({ token, w }) => {
      const button = element(
        "button",
        { type: "button", class: "unnumbered" },
        element("span", { class: "token", text: tokenName(theirs, token, 24) }),
        element("span", { class: "weight", text: percent(w) }),
      );
      button.style.setProperty("--share", String(Math.min(1, w / best[0].w)));
      button.addEventListener("click", () => this.choose(token));
      return element("li", {}, button);
    });
    this.ranking.replaceChildren(
      element("h3", { text: looking ? "Attends most to" : "Is attended to most by" }),
      element("ol", { class: "ranked" }, ...lines),
    );
  }

  /** @param {ImageFindings} findings */
  showOutliers({ outliers, looking, theirs, state }) {
    this.marked.hidden = !outliers.size || !looking;
    if (this.marked.hidden) return;
    const named = [...outliers]
      .slice(0, 8)
      .map(([token, share]) => `${tokenName(theirs, token, 24)} (${percent(share)})`);
    const left = state.sink === "apart" ? " They are left out of the colours." : "";
    this.marked.replaceChildren(
      element("h3", {
        text: `${some(outliers.size, "outlier patch").replace(/patchs$/, "patches")}, ringed`,
      }),
      element("p", {
        class: "small quiet",
        text: `They receive far more than other patches, on average over all queries: ${named.join("; ")}.${left}`,
      }),
    );
  }
}
