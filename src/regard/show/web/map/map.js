// @ts-check
// The Map view: every head as a small map, the chosen one large, down to a single weight.
// It puts the parts together: thumbnails, canvas, controls, legend, notes, export.

import { AttributionPanel } from "../parts/attribution_panel.js";
import { layerOf } from "../data/layers.js";
import { badge, choice, element, makeButton, termList } from "../parts/dom.js";
import { foldedSettings } from "../parts/controls.js";
import { areWeights, mapQuantity, PLAIN, quantityName, spell } from "../data/quantity.js";
import { quantityControls } from "../parts/quantity_controls.js";
import { axisOf, short, tokenAt } from "../data/tokens.js";
import { inUnits, unitAt } from "../data/units.js";
import { EdgeCuts } from "../runs/edge_cuts.js";
import { headSwitch } from "../runs/head_switch.js";
import { MapCanvas } from "./canvas.js";
import { exportMenu } from "../picture/menu.js";
import { mapFigure, mapRows } from "./figure.js";
import { headSentence } from "../parts/head_words.js";
import { PageView } from "../view.js";
import { legend, noteOf } from "./legend.js";
import { NUMBERS } from "./heatmap.js";
import { Readout } from "./readout.js";
import { Thumbnails } from "./thumbnails/thumbnails.js";
import { levelFor } from "./tiles.js";

export class MapView extends PageView {
  /** @param {ViewPlace} place */
  constructor(...place) {
    super(...place);
    const { root, app } = this;
    this.layer = layerOf(app.meta, app.state.text, app.state.layer);
    this.quantity = PLAIN;
    this.named = ""; // the layer and head that the words are about
    root.classList.add("map");
    const side = element("aside.map-side", { "aria-label": "Every head" });
    const notes = element("aside.map-notes", { "aria-label": "Details" });
    this.title = element("h2", { id: "map-title" });
    this.proof = element("span");
    this.tip = element("p.tip", { "aria-hidden": "true", hidden: true });
    this.controls = makeControls(this);
    const space = element("div.map-stage");
    const foot = element("div.map-foot");
    this.cut = headSwitch(app, "Cut this head");
    this.words = headSentence(app);
    const save = exportMenu(app, {
      name: () => `layer-${this.layer.key}-head-${app.state.head}${app.runs.edited ? "-edited" : ""}`,
      picture: () => mapFigure(app, this.large, (scene) => this.note(scene)),
      table: () => mapRows(this.large),
    });
    const [unfold, settings] = foldedSettings(this.controls.bar);
    const ends = [this.controls.whole, unfold, save];
    const end = element("div.push", { role: "group", "aria-label": "View" }, ...ends);
    const heading = element("div.map-title", this.title, this.words.tags, this.proof, this.cut, end);
    const caption = element("div.map-caption", this.words);
    const main = element("div.map-main", heading, caption, settings, space, foot);
    root.append(side, main, notes);
    this.large = new MapCanvas(space, app, this.layer, {
      thumb: () => this.small.chosen,
      drawn: (scene) => this.tell(scene),
    });
    this.attribution = new AttributionPanel(app);
    this.small = new Thumbnails(side, app, () => this.large.plan(), this.attribution.box);
    this.legend = legend(foot);
    this.readout = new Readout(notes, app);
    this.edges = new EdgeCuts(app, () => tokensIn(this.large.camera.frame, this.layer));
    this.readout.ranked.before(this.edges.box);
    space.append(this.tip);
    notes.append(help());
  }

  /** @param {State} state */
  show(state) {
    const { meta } = this.app;
    const quantity = mapQuantity(meta, state);
    const captured = layerOf(meta, state.text, state.layer);
    const layer = inUnits(meta, captured, quantity);
    [this.layer, this.quantity] = [layer, quantity];
    const name = [state.text, layer.key, state.head, meta.texts.length, quantityName(quantity)].join(" ");
    if (name !== this.named) {
      this.title.textContent = `Layer ${layer.key}, head ${state.head}`;
      const { certified, unplaced } = layer.evidence;
      this.proof.replaceChildren(...(certified && !unplaced ? [] : [badge(layer.evidence)]));
      this.small.show();
      this.readout.showLayer(captured);
      this.cut.show(layer.key, state.head);
      this.named = name;
    }
    this.controls.show(quantity);
    this.words.show();
    this.small.recolour();
    this.attribution.show(quantity);
    // The map counts in units, the state in tokens.
    const [row, col] = [unitAt(layer, "queries", state.row), unitAt(layer, "keys", state.col)];
    const inMap = { ...state, row, col };
    this.readout.showRow(inMap, layer, quantity);
    this.large.show(inMap, layer, quantity);
    this.edges.draw();
  }

  hide() {
    this.large.hide();
  }

  /**
   * Says in words and numbers what the picture shows.
   * @param {Scene} scene
   */
  tell(scene) {
    const { state, hover, cursor } = scene;
    this.legend.show(scene, this.note(scene));
    this.controls.follow(scene);
    this.edges.follow();
    this.tip.hidden = true;
    if (hover) this.tellPointed(scene, hover);
    else if (cursor) this.tellChosen(scene, cursor);
    else this.readout.showCell(state, this.layer, this.quantity, null);
  }

  /**
   * What a cell stands for, as a sentence.
   * @param {Scene} scene
   */
  note({ look, z, quantity }) {
    const { runs, state } = this.app;
    const cut = runs.has({ kind: "head", layer: state.layer, head: state.head });
    const zero = cut ? " This head is cut in this run: it attends, but its output is zero." : "";
    const blank = look.blank ? "Every cell is 0. " : "";
    return blank + noteOf(look.reduce, z, quantity, this.controls.predicted) + zero;
  }

  /**
   * The cell under the pointer, from the tile that is drawn there.
   * @param {Scene} scene
   * @param {Cell} cell
   */
  tellPointed(scene, cell) {
    const found = this.large.pyramid.cell(cell.row, cell.col, Math.log2(cell.size));
    if (!found || 2 ** found.z !== cell.size) return;
    this.tellCell(scene, { ...cell, mass: found.mass, max: found.max });
  }

  /**
   * The chosen cell's weight comes from its own row, so that it is exact at every zoom.
   * @param {Scene} scene
   * @param {Cell} cell
   */
  async tellChosen(scene, cell) {
    const { text, layer: key, head, row, col } = scene.state;
    const weights = await this.app.source.row(text, key, head, row, scene.quantity);
    const now = this.large.state;
    if (now.row !== row || now.col !== col || now.layer !== key || now.head !== head) return;
    if (quantityName(this.quantity) !== quantityName(scene.quantity)) return;
    const found = this.large.pyramid.cell(row, col);
    const unseen = weights[col] === 0 && found && found.z === 0 && found.max < 0;
    this.edges.setHidden(Boolean(unseen));
    this.tellCell(scene, { ...cell, mass: weights[col], max: unseen ? -1 : Math.abs(weights[col]) });
  }

  /**
   * Writes a cell's number in the notes, and beside the cell for eyes that are on the map.
   * @param {Scene} scene
   * @param {CellWeights} cell
   */
  tellCell(scene, cell) {
    const { tip } = this;
    this.readout.showCell(scene.state, this.layer, scene.quantity, cell);
    const { camera, gutter, width } = scene;
    const side = camera.zoom * cell.size;
    const [x, y] = camera.point([cell.col + cell.size, cell.row]);
    const outside = x < 0 || y < 0 || x > camera.width + side || y > camera.height;
    if (outside || (camera.zoom >= NUMBERS && cell.max >= 0)) return; // large cells have it written in them
    tip.textContent = this.tipOf(scene, cell);
    tip.hidden = false;
    const { offsetWidth, offsetHeight } = tip;
    const right = gutter.left + x + 10;
    const left = right - offsetWidth - 20 - side;
    const beside = right + offsetWidth <= width ? right : left;
    // Where there is no room on either side it stands above the cell, or below.
    const above = gutter.top + y - offsetHeight - 6;
    const apart = above >= 0 ? above : gutter.top + y + side + 6;
    const [at, top] = beside >= 0 ? [beside, Math.max(0, gutter.top + y - 10)] : [0, apart];
    tip.style.transform = `translate(${Math.round(at)}px, ${Math.round(top)}px)`;
  }

  /**
   * What a cell says beside the pointer: the tokens, words or sentences that it is of, and its number.
   * @param {Scene} scene
   * @param {CellWeights} cell
   */
  tipOf({ text, quantity }, { row, col, size, mass, max }) {
    if (max < 0) {
      const cell = { row, col, size, mass, max };
      return this.app.runs.isCut(cell, this.layer) ? "cut in this run" : "hidden by the mask";
    }
    if (size > 1) return spell(quantity, mass);
    const [query, key] = [
      tokenAt(axisOf(this.app.meta, text, this.layer, "queries"), row),
      tokenAt(axisOf(this.app.meta, text, this.layer, "keys"), col),
    ];
    return `${short(query, 24)} → ${short(key, 24)}  ${spell(quantity, mass)}`;
  }
}

/**
 * A part of the map in tokens, from one in units.
 * @param {Rectangle} frame
 * @param {Layer} layer
 */
function tokensIn(frame, layer) {
  if (!layer.units) return frame;
  /** @type {(axis: Axis, first: number, last: number) => [number, number]} */
  const span = (axis, first, last) => {
    const edges = layer.units?.[axis].edges ?? [];
    const within = (/** @type {number} */ unit) => edges[Math.min(edges.length - 1, Math.max(0, unit))];
    return [within(Math.floor(first)), within(Math.ceil(last))];
  };
  const [[left, right], [top, bottom]] = [
    span("keys", frame.left, frame.right),
    span("queries", frame.top, frame.bottom),
  ];
  return { left, right, top, bottom };
}

/** How to move the map and to select cells. */
function help() {
  /** @type {[string, string][]} */
  const keys = [
    ["drag", "move"],
    ["wheel, pinch", "zoom"],
    ["click", "select a cell"],
    ["double click", "zoom to a cell"],
    ["arrows", "select a cell"],
    ["⇧ arrows", "move"],
    ["+ − 0", "zoom, show all"],
    ["Enter", "zoom to the cell"],
  ];
  const list = element("dl.facts.spoken", ...termList(keys, { class: "mono" }));
  const heading = element("h3", "Mouse and keys");
  return element("div.notes-block", { id: "map-help" }, heading, list);
}

const NAMES = /** @type {const} */ (["scale", "colourTop", "reduce", "sink"]);

/** @param {MapView} view */
function makeControls(view) {
  const { app } = view;
  const ends = { head: "this head", view: "the view", one: "0 to 1" };
  /** @type {Record<typeof NAMES[number], Choice>} */
  const choices = {
    scale: choice("Scale", "scale", { linear: "linear", log: "log" }, (scale) => app.set({ scale })),
    colourTop: choice("Colour range", "top", ends, (colourTop) => app.set({ colourTop })),
    reduce: choice("Cells", "reduce", { mass: "mass", max: "max" }, (reduce) => app.set({ reduce })),
    sink: choice("Sink", "sink", { in: "shown", apart: "left out" }, (sink) => app.set({ sink })),
  };
  /** @type {(text: string, label: string, act: () => void) => HTMLButtonElement} */
  const button = (text, label, act) => makeButton(text, act, { "aria-label": label, title: label });
  const quantities = quantityControls(app, "map", () => view.large.plan());
  let pools = true; // whether cells are sums of weights
  const zoom = element(
    "div.options",
    { role: "group", "aria-label": "Zoom" },
    button("−", "Zoom out", () => view.large.zoomBy(1 / 1.6)),
    button("+", "Zoom in", () => view.large.zoomBy(1.6)),
  );
  const parts = [...quantities.parts, ...Object.values(choices), zoom];
  const bar = element("div.map-bar", { role: "toolbar", "aria-label": "Map settings" }, ...parts);
  const whole = button("Whole map", "Show the whole map", () => view.large.showWhole());
  return {
    bar,
    whole,
    /** The token that contributions are of, in quotes. */
    get predicted() {
      return quantities.predicted;
    },
    /** @param {Quantity} quantity */
    show(quantity) {
      const { state } = app;
      for (const name of NAMES) choices[name].value = state[name];
      quantities.show(quantity);
      pools = areWeights(quantity);
      choices.sink.hidden = !areWeights(quantity) || quantity.units !== "tokens";
      // Contributions have no greatest number.
      const bounded = quantity.shade === "weights";
      choices.colourTop.offer("one", bounded);
      if (!bounded && state.colourTop === "one") choices.colourTop.value = "head";
    },
    /**
     * What a cell is of several weights can be chosen only where cells have several.
     * @param {Scene} scene
     */
    follow({ camera, pixel, layer, quantity }) {
      const pooled =
        quantity.units !== "tokens" || levelFor(camera.whole / pixel, layer.rows, layer.cols) > 0;
      choices.reduce.hidden = !pools || !pooled;
      whole.hidden = camera.isWhole;
    },
  };
}
