// @ts-check
// The notes beside the text: the chosen token, the list of the strongest, and what the list leaves out.

import { percent } from "../data/format.js";
import { rampBar } from "../parts/controls.js";
import { element, tableRows, tokenLine } from "../parts/dom.js";
import { rankingTitle, spell } from "../data/quantity.js";
import { short, visible } from "../data/tokens.js";
import { UNIT } from "../data/units.js";
import { heatBar } from "./heat.js";
import { rankingNotes } from "./ranking.js";

/** @type {Record<Quantity["units"], string>} */
const UNIT_TITLE = { tokens: "Token", words: "Word", sentences: "Sentence" };

/**
 * @typedef {object} TokenNews what there is to say of the chosen token beside its ranking
 * @property {boolean} pinned
 * @property {string} scope in words
 * @property {string} doubt of the layers that are shown, or ""
 * @property {string} cut says that the head is cut in this run, or ""
 * @property {{ scope: string, shaded: Shaded, ranking: Ranking } | null} second of a second head
 * @property {boolean} pictured whether some tokens are patches of a picture
 * @property {KindShare[]} shares of patches and of what stands beside them
 * @property {Map<number, number>} outliers patches that receive far more than others, with their mean weights
 */

/** @typedef {TokenRanking & TokenNews} TokenFindings */

const NAMED = 8; // outliers

/** How another token is chosen, for those who point and for those who touch. */
const HINT = {
  point: "Point at another token, or use the arrow keys; a click or Enter pins it.",
  touch: "Tap another token to choose it.",
};

/** The notes; `choose(token)` is called when the reader takes one from the list. */
export class TextNotes {
  /** @param {(token: number) => void} choose */
  constructor(choose) {
    this.choose = choose;
    this.chosen = element("div.notes-block");
    this.title = element("h3");
    this.list = element("ol.ranked");
    this.ranking = element("div.notes-block", this.title, this.list);
    this.secondList = element("ol.ranked");
    this.secondTitle = element("p.small.legend-line.second");
    this.second = element("div.notes-block.second-head", { hidden: true }, this.secondTitle, this.secondList);
    this.ramp = rampBar();
    this.heat = heatBar(); // of tokens that are patches of a picture
    this.heat.append("in the picture");
    this.note = element("p.small.quiet.text-note");
    this.shares = element("table.shares");
    this.marked = element("p.small.quiet");
    this.patches = element("div.notes-block", { hidden: true }, this.shares, this.marked);
    this.box = element(
      "aside.text-notes",
      { "aria-label": "Selected token" },
      this.chosen,
      this.patches,
      this.ranking,
      this.second,
      this.ramp,
      this.heat,
      this.note,
    );
  }

  /** While no token is chosen. */
  clear() {
    const parts = [this.ranking, this.ramp, this.heat, this.second, this.patches];
    for (const part of parts) part.hidden = true;
    this.list.replaceChildren();
    this.note.textContent = "";
    this.chosen.replaceChildren(element("p.quiet", "No token is selected."));
  }

  /** @param {TokenFindings} findings */
  show(findings) {
    const { tokens, shaded, looking, pinned, scope, quantity, doubt, cut, second, pictured } = findings;
    this.showPatches(findings);
    this.ranking.hidden = this.ramp.hidden = false;
    this.chosen.replaceChildren(
      element("h3", `${UNIT_TITLE[quantity.units]} ${shaded.token}${pinned ? ", pinned" : ""}`),
      element("p.big-token.token", visible((tokens[shaded.token] ?? "").slice(0, 60))),
      element("p", { class: `small quiet ${second ? "legend-line first" : ""}` }, scope),
    );
    if (cut) this.chosen.append(element("p.small.cut-note", cut));
    const hint = matchMedia("(hover: none)").matches ? HINT.touch : HINT.point;
    if (!pinned) this.chosen.append(element("p.small.quiet.hint", hint));
    this.title.textContent = rankingTitle(quantity, looking);
    this.list.replaceChildren(...this.lines(findings));
    this.second.hidden = !second;
    this.secondTitle.textContent = second?.scope ?? "";
    this.secondList.replaceChildren(...(second ? this.lines({ ...findings, ...second }) : []));
    const end = spell(quantity, shaded.top);
    this.ramp.show(shaded.signed ? spell(quantity, -shaded.top) : "0", end, shaded.signed);
    this.heat.hidden = !pictured || shaded.signed;
    this.heat.show("0", end);
    const notes = rankingNotes(findings);
    this.note.textContent = [...notes, doubt].join(" ").trimEnd();
  }

  /** @param {TokenFindings} findings */
  showPatches({ tokens, shares, outliers, looking }) {
    this.shares.hidden = !looking || shares.length < 2;
    this.marked.hidden = !looking || !outliers.size;
    this.patches.hidden = this.shares.hidden && this.marked.hidden;
    const lines = shares.map(({ name, share, uniform }) => [name, percent(share), percent(uniform)]);
    this.shares.replaceChildren(...tableRows(["Attention to", "here", "if uniform"], lines));
    const named = [...outliers]
      .slice(0, NAMED)
      .map(([token, share]) => `${short(tokens[token] ?? "", 24)} (${percent(share)})`);
    this.marked.textContent =
      `Ringed: ${outliers.size === 1 ? "an outlier patch" : `${outliers.size} outlier patches`}, which receive far ` +
      `more than others, on average over all queries: ${named.join("; ")}.`;
  }

  /**
   * The lines of a list.
   * @param {TokenRanking} ranking
   */
  lines({ tokens, shaded: { top, signed }, ranking: { best }, quantity }) {
    return best.map(({ token, w }) => {
      const weight = element("span.weight", { "data-weight": w }, spell(quantity, w));
      const button = tokenLine(token, short(tokens[token] ?? "", 24), weight, () => this.choose(token), {
        title: `Go to ${UNIT[quantity.units]} ${token}`,
        class: signed ? (w < 0 ? "below" : "above") : null,
        "--share": Math.abs(w) / top,
      });
      return element("li", button);
    });
  }
}
