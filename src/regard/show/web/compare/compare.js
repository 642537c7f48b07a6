// @ts-check
// The Compare view: two heads side by side, of one text, of two, or of two captures, and their difference. The maps
// move together and share their colours. What is compared stands in the address (see `pair.js`).

import { latest, rampBar } from "../parts/controls.js";
import { choice, element, makeButton } from "../parts/dom.js";
import { layerOf } from "../data/layers.js";
import { isSameShape, PLAIN, spell } from "../data/quantity.js";
import { axisOf, short, tokenAt } from "../data/tokens.js";
import { isClipped } from "../map/legend.js";
import { exportMenu } from "../picture/menu.js";
import { PageView } from "../view.js";
import { differenceSource } from "./difference.js";
import { viewFigure } from "../picture/figure.js";
import { headWords } from "../picture/words.js";
import { complete } from "../map/figure.js";
import { LinkedMap } from "./pane.js";
import { formatPair, pairOf } from "./pair.js";
import { comparison, scoreTable } from "./score_table.js";
import { ComparedSide } from "./side.js";

const HELP = "Point at a cell, drag to move, scroll to zoom: all maps follow.";

/** A map with its frame: where it is drawn, and the bar of its colours. */
class Pane {
  /**
   * @param {CompareView} view
   * @param {string} label
   * @param {HTMLElement} words over the map
   */
  constructor(view, label, words) {
    this.stage = element("div.compare-stage");
    this.ramp = rampBar();
    this.box = element("section.compare-pane", { "aria-label": label }, words, this.stage, this.ramp);
    /** @type {LinkedMap | null} */
    this.map = null;
    this.view = view;
  }

  /**
   * Shows a head; `source` answers for it.
   * @param {State} state
   * @param {HeadPlace} place
   * @param {Quantity} quantity
   * @param {Source} source
   */
  show(state, place, quantity, source) {
    const { app } = this.view;
    const layer = layerOf(app.meta, place.text, place.layer);
    const own = /** @type {App} */ (Object.create(app, { source: { value: source } }));
    this.map ??= new LinkedMap(this.stage, own, layer, {
      thumb: () => null,
      drawn: (scene) => this.tell(scene),
    });
    this.map.pyramid.source = source;
    this.map.show({ ...state, ...place, sink: "in", reduce: "mass" }, layer, quantity);
  }

  hide() {
    this.map?.hide();
  }

  /** @param {Scene} scene */
  tell(scene) {
    const { look, quantity } = scene;
    const { top, signed } = look.scale;
    const [below, beyond] = isClipped(scene) ? ["≤ ", "≥ "] : ["", ""];
    if (signed && look.blank) this.view.unlike.textContent = "A and B attend alike: every difference is 0.";
    this.ramp.show(signed ? below + spell(quantity, -top) : "0", beyond + spell(quantity, top), signed);
    this.view.tell();
  }
}

export class CompareView extends PageView {
  /** @param {ViewPlace} place */
  constructor(...place) {
    super(...place);
    const { root, app } = this;
    this.sides = ["a", "b"].map(
      (kind, n) =>
        new ComparedSide(app, kind, (place) => app.set({ pair: formatPair(this.pair.with(n, place)) })),
    );
    this.panes = this.sides.map((side, n) => new Pane(this, `Map ${"AB"[n]}`, side.box));
    this.unlike = element("p.small.quiet");
    const words = element("div.compare-side", element("h3", "Difference: A − B"), this.unlike);
    this.difference = new Pane(this, "Difference", words);
    this.headline = element("p.lead");
    this.said = element("p.compare-said.quiet", { "aria-live": "polite" }, HELP);
    this.scores = element("section.compare-table", { "aria-label": "Scores of both heads" });
    this.scale = choice("Scale", "compare-scale", { linear: "linear", log: "log" }, (scale) =>
      app.set({ scale }),
    );
    const turn = () => app.set({ pair: formatPair(this.pair.toReversed()) });
    this.swap = makeButton("Swap A and B", turn);
    const written = (/** @type {HeadPlace} */ { text, layer, head }) => `${text}-${layer}-${head}`;
    const save = exportMenu(app, {
      name: () => `compare-${this.pair.map(written).join("-with-")}`,
      picture: () => this.figure(),
    });
    const bar = element("div.bar-of-choices", this.scale, this.swap, save);
    this.row = element("div.compare-panes", ...this.all.map(({ box }) => box));
    const column = element("div.column.wide", this.headline, this.said, this.row, this.scores);
    root.append(bar, element("div.scroll", column));
    this.findScores = latest((fresh) => this.score(fresh));
    this.scored = "";
  }

  /** Every pane. */
  get all() {
    return [...this.panes, this.difference];
  }

  /** The panes that show a map. */
  get shown() {
    return this.all.filter(({ stage }) => !stage.hidden);
  }

  get pair() {
    return pairOf(this.app.meta, this.state);
  }

  /** @param {State} state */
  show(state) {
    this.state = state;
    const { app, pair } = this;
    const { source, meta } = app;
    this.scale.value = state.scale;
    this.sides.forEach((side, n) => side.show(pair[n]));
    this.panes.forEach((pane, n) => pane.show(state, pair[n], PLAIN, source));
    const [a, b] = pair.map(({ text, layer }) => layerOf(meta, text, layer));
    const alike = isSameShape(a, b);
    this.difference.stage.hidden = this.difference.ramp.hidden = !alike;
    this.unlike.textContent = alike
      ? "Orange: A attends more. Blue: B attends more."
      : `There is none: A has ${a.rows} × ${a.cols} cells and B ${b.rows} × ${b.cols}.`;
    if (alike) {
      const quantity = { ...PLAIN, difference: true };
      this.difference.show(state, pair[0], quantity, differenceSource(source, pair[0], pair[1]));
    } else this.difference.hide();
    const maps = this.shown.flatMap(({ map }) => (map ? [map] : []));
    for (const map of maps) map.peers = maps;
    this.findScores();
  }

  hide() {
    for (const pane of this.all) pane.hide();
  }

  /** The maps side by side, once they are complete. */
  async figure() {
    const { app, shown, pair, row } = this;
    for (const { map } of shown) if (map) await complete(map);
    const words = await Promise.all(pair.map((place) => headWords(app, place)));
    const named = words.map((own, n) => ({ ...own, name: "AB"[n] }));
    return viewFigure([row], {
      heading: named.map(({ name, heading }) => `${name}: ${heading}`).join("; "),
      lines: named.map(({ name, lines }) => `${name}: ${lines[0]}`), // what the heads do stands over their maps
      notes: ["A and B share one scale of colours."],
      warning: named.flatMap(({ warning }) => warning || []).join(" "),
    });
  }

  /**
   * What the heads do, in words and bars.
   * @param {() => boolean} fresh
   */
  async score(fresh) {
    const { app, pair } = this;
    const name = formatPair(pair);
    if (name !== this.scored) this.scores.replaceChildren();
    const rows = await Promise.all(
      pair.map(async ({ text, layer, head }) => {
        const all = await app.source.layerHeads(text, layer);
        return all.find((row) => row.head === head);
      }),
    );
    if (!fresh()) return;
    this.sides.forEach((side, n) => side.tell(rows[n]));
    this.headline.textContent = comparison(rows);
    if (name !== this.scored) this.scores.replaceChildren(element("h2", "Scores"), scoreTable(rows));
    this.scored = name;
  }

  /** Says the numbers of the cell that is pointed at, or chosen, in every map. */
  tell() {
    const { shown, app, pair } = this;
    const first = shown[0].map;
    const scene = first?.scene();
    const cell = scene && (scene.hover ?? scene.cursor);
    if (!cell) {
      this.said.textContent = HELP;
      this.said.classList.add("quiet");
      return;
    }
    const layer = layerOf(app.meta, pair[0].text, pair[0].layer);
    const named = (/** @type {Axis} */ axis) =>
      `“${short(tokenAt(axisOf(app.meta, pair[0].text, layer, axis), axis === "queries" ? cell.row : cell.col), 20)}”`;
    const numbers = shown.map(({ map }, n) => {
      const found = map?.pyramid.cell(cell.row, cell.col, Math.log2(cell.size));
      const number = !found ? "…" : found.max < 0 ? "hidden" : spell(map?.quantity ?? PLAIN, found.mass);
      return `${["A", "B", "difference"][n]} ${number}`;
    });
    const where =
      cell.size > 1
        ? `queries from ${cell.row}, keys from ${cell.col}`
        : `${named("queries")} → ${named("keys")}`;
    this.said.textContent = `${where}: ${numbers.join(", ")}`;
    this.said.classList.remove("quiet");
  }
}
