// @ts-check
// The Map view: every head as a small map, the chosen one large, down to a single weight.
// It puts the parts together: thumbnails, canvas, controls, legend, notes, export.

import { badge, choice, element } from "../common/dom.js";
import { exact } from "../common/format.js";
import { layerOf } from "../common/layers.js";
import { short, tokenAt } from "../common/tokens.js";
import { mapCanvas } from "./canvas.js";
import { exportMenu } from "./export.js";
import { legend, marksOf, noteOf } from "./legend.js";
import { NUMBERS } from "./picture.js";
import { readout } from "./readout.js";
import { cellsIn } from "./region.js";
import { thumbnails } from "./thumbnails.js";

/**
 * @param {HTMLElement} root
 * @param {App} app
 * @returns {View}
 */
export function map(root, app) {
  root.classList.add("map");
  const side = element("aside", { class: "map-side", "aria-label": "Every head" });
  const main = element("div", { class: "map-main" });
  const notes = element("aside", { class: "map-notes", "aria-label": "What is read here" });
  root.append(side, main, notes);

  const title = element("h2", { id: "map-title" });
  const proof = element("span");
  const controls = makeControls(app);
  const space = element("div", { class: "map-stage" });
  const foot = element("div", { class: "map-foot" });
  const tip = element("p", { class: "tip", "aria-hidden": "true", hidden: true });
  const heading = element("div", { class: "map-title" }, title, proof, controls.zooming);
  main.append(heading, controls.bar, space, foot);

  const large = mapCanvas(space, app, { thumb: () => small.chosen(app.state), drawn: tell });
  const small = thumbnails(side, app, large.plan);
  const bar = legend(foot);
  const reading = readout(notes, app);
  space.append(tip);
  notes.append(help());
  controls.zooming.append(
    exportMenu(app, shownNow, () => cellsIn(app, large.scene(), large.pyramid.without)),
  );
  controls.zoom(large.zoomBy, large.whole);
  let layer = layerOf(app.meta, app.state.text, app.state.layer);
  let named = ""; // the layer and head that the words are about

  /**
   * @param {State} state
   * @param {ColourScale} scale
   */
  const isClipped = (state, scale) => state.colourTop === "fit" && scale.top < 1;

  /**
   * Says in words and numbers what the picture shows.
   * @param {Scene} scene
   */
  function tell(scene) {
    const { state, sink, look, z } = scene;
    bar.show({
      scale: look.scale,
      clipped: isClipped(state, look.scale),
      reduce: state.reduce,
      z,
      boundary: scene.boundary !== null,
      sink: sink && { ...sink, token: short(tokenAt(app.meta, state.text, layer, "keys", sink.key), 16) },
    });
    const cell = scene.hover ?? scene.cursor;
    tip.hidden = true;
    if (!cell) reading.cell(state, layer, null);
    else if (cell === scene.cursor) chosen(scene, cell);
    else pointed(scene, cell);
  }

  /**
   * The cell under the pointer, from the tile that is drawn there.
   * @param {Scene} scene
   * @param {Cell} cell
   */
  function pointed(scene, cell) {
    const found = large.pyramid.cell(cell.row, cell.col);
    if (!found || 2 ** found.z !== cell.size) return;
    const own = cell.size === 1 && cell.col === scene.sink?.key ? scene.sink : null; // stands apart
    const mass = own ? own.column[cell.row] : found.mass;
    say(scene, { ...cell, mass, max: own ? Math.max(mass, found.max) : found.max });
  }

  /**
   * The chosen cell's weight comes from its own row, so that it is exact at every zoom.
   * @param {Scene} scene
   * @param {Cell} cell
   */
  async function chosen(scene, cell) {
    const { text, layer: key, head, row, col } = scene.state;
    const weights = await app.source.row(text, key, head, row);
    const now = app.state;
    if (now.row !== row || now.col !== col || now.layer !== key || now.head !== head) return;
    const found = large.pyramid.cell(row, col);
    const unseen = weights[col] === 0 && found && found.z === 0 && found.max < 0;
    say(scene, { ...cell, mass: weights[col], max: unseen ? -1 : weights[col] });
  }

  /**
   * Writes a cell's number in the notes, and beside the cell for eyes that are on the map.
   * @param {Scene} scene
   * @param {CellWeights} cell
   */
  function say(scene, cell) {
    reading.cell(scene.state, layer, cell);
    const { camera, gutter, width } = scene;
    const side = camera.zoom * cell.size;
    const [x, y] = camera.point(cell.col + cell.size, cell.row);
    const outside = x < 0 || y < 0 || x > camera.width + side || y > camera.height;
    if (outside || (camera.zoom >= NUMBERS && cell.max >= 0)) return; // large cells have it written in them
    tip.textContent = cell.max < 0 ? "hidden by the mask" : exact(cell.mass);
    tip.hidden = false;
    const left = gutter.left + x + 10;
    const turned = left + tip.offsetWidth > width ? left - tip.offsetWidth - 20 - side : left;
    const top = Math.max(0, gutter.top + y - 10);
    tip.style.transform = `translate(${Math.round(turned)}px, ${Math.round(top)}px)`;
  }

  /** What there is to export: the picture of this moment, with its words. */
  function shownNow() {
    const scene = large.scene();
    const { state, sink, look } = scene;
    const percent = sink ? `${(100 * sink.share).toFixed(1)}%` : "";
    const apart = sink ? ` Key ${sink.key} stands apart with ${percent} of all attention.` : "";
    const doubt = layer.evidence.certified ? "" : " (not certified)";
    const words = {
      title: app.meta.model,
      after: `, layer ${layer.key}, head ${state.head}${doubt}`,
      marks: marksOf(look.scale, isClipped(state, look.scale)),
      note: noteOf(state.reduce, scene.z) + apart,
    };
    return { scene: { ...scene, hover: null }, words, name: `layer-${layer.key}-head-${state.head}` };
  }

  return {
    show(state) {
      layer = layerOf(app.meta, state.text, state.layer);
      const name = [state.text, layer.key, state.head, app.meta.texts.length].join(" ");
      if (name !== named) {
        title.textContent = `Layer ${layer.key}, head ${state.head}`;
        proof.replaceChildren(badge(layer.evidence));
        small.show(state);
        reading.layer(state, layer);
        named = name;
      }
      controls.show(state);
      reading.row(state, layer);
      large.show(state, layer);
    },
    hide: large.hide,
  };
}

/** How the map is moved, in few words. */
function help() {
  const list = element("dl", { class: "facts spoken" });
  const lines = [
    ["drag", "move"],
    ["wheel, pinch", "zoom"],
    ["click", "keep a cell"],
    ["double click", "go to a cell"],
    ["arrows", "choose a cell"],
    ["⇧ arrows", "move"],
    ["+ − 0", "zoom, show all"],
    ["Enter", "go to the cell"],
  ];
  for (const [hand, does] of lines) {
    list.append(element("dt", { class: "mono", text: hand }), element("dd", { text: does }));
  }
  const heading = element("h3", { text: "By hand and by key" });
  return element("div", { class: "notes-block", id: "map-help" }, heading, list);
}

const NAMES = /** @type {const} */ (["scale", "colourTop", "reduce", "sink"]);

/** @param {App} app */
function makeControls(app) {
  const bar = element("div", { class: "map-bar", role: "toolbar", "aria-label": "How the map is drawn" });
  /** @type {Record<typeof NAMES[number], HTMLElement & { value: string }>} */
  const choices = {
    scale: choice("Scale", "scale", { linear: "linear", log: "log" }, (scale) => app.set({ scale })),
    colourTop: choice("Up to", "top", { fit: "fit", one: "1" }, (colourTop) => app.set({ colourTop })),
    reduce: choice("Cells", "reduce", { mass: "mass", max: "max" }, (reduce) => app.set({ reduce })),
    sink: choice("Sink", "sink", { in: "in place", apart: "apart" }, (sink) => app.set({ sink })),
  };
  /**
   * @param {string} text
   * @param {string} label
   */
  const button = (text, label) =>
    element("button", { class: "button", type: "button", text, "aria-label": label, title: label });
  const [out, into] = [button("−", "Zoom out"), button("+", "Zoom in")];
  const all = button("All", "Show the whole map");
  bar.append(...Object.values(choices));
  const zooming = element("div", { class: "push", role: "group", "aria-label": "Zoom and export" });
  zooming.append(out, into, all);
  return {
    bar,
    zooming,
    /** @param {State} state */
    show(state) {
      for (const name of NAMES) choices[name].value = state[name];
    },
    /**
     * @param {(factor: number) => void} by
     * @param {() => void} whole
     */
    zoom(by, whole) {
      out.addEventListener("click", () => by(1 / 1.6));
      into.addEventListener("click", () => by(1.6));
      all.addEventListener("click", whole);
    },
  };
}
