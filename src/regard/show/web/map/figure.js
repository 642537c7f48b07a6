// @ts-check
// The map as a figure: what is shown of it, in light colours on white, with its words, its colour bar and its keys.

import { percent } from "../data/format.js";
import { axisOf, tokenAt, visible } from "../data/tokens.js";
import { viewFigure } from "../picture/figure.js";
import { PAPER_SANS } from "../picture/fonts.js";
import { SvgDrawing } from "../picture/svg_drawing.js";
import { headWords } from "../picture/words.js";
import { BESIDE, drawLabels } from "./axes.js";
import { isClipped, marksOf, hasHidden } from "./legend.js";

const PATIENCE = 20000; // milliseconds that a figure waits for what is not there yet
const PAUSE = 50;
const TITLE = 18; // pixels for the name of an axis

/**
 * The figure, once all that it shows has come; `note` says what a cell stands for.
 * @param {App} app
 * @param {import("./canvas.js").MapCanvas} map
 * @param {(scene: Scene) => string} note
 * @returns {Promise<Picture>}
 */
export async function mapFigure(app, map, note) {
  await complete(map);
  const scene = map.scene();
  const { state, layer } = scene;
  const words = await headWords(app, { text: state.text, layer: layer.key, head: state.head });
  words.notes = [note(scene), sinkNote(scene), ...words.notes].filter(Boolean);
  return viewFigure([map.canvas], words, keysOf(scene));
}

/**
 * What is to be explained in a scene.
 * @param {Scene} scene
 * @returns {FigureKeys}
 */
function keysOf(scene) {
  const { scale } = scene.look;
  return {
    bar: { scale, marks: marksOf(scale, isClipped(scene), scene.quantity) },
    hatch: hasHidden(scene) ? "hidden by the mask" : "",
    dashed: scene.boundary ? "end of the prompt" : "",
  };
}

/**
 * Waits until every tile of the picture is there.
 * @param {import("./canvas.js").MapCanvas} map
 */
export async function complete(map) {
  for (let waited = 0; !map.scene().complete; waited += PAUSE) {
    if (waited > PATIENCE) throw new Error("the map is still being computed: try again when it is there");
    await new Promise((done) => setTimeout(done, PAUSE));
  }
}

/**
 * The scene in the fonts of figures, without what is pointed at.
 * @param {Scene} scene
 * @returns {Scene}
 */
export function paperScene(scene) {
  const number = /^\d+px/.exec(scene.fonts.number)?.[0] ?? "10px";
  const fonts = {
    token: `11px ${PAPER_SANS}`,
    title: `12px ${PAPER_SANS}`,
    number: `${number} ${PAPER_SANS}`,
  };
  const paper = { ...scene, fonts, pixel: 0.01, hover: null, cursor: null, marked: { row: -1, col: -1 } };
  const labelRoom = { queries: scene.gutter.left - BESIDE, keys: scene.gutter.top - BESIDE };
  return { ...paper, gutter: fittedGutter(paper), labelRoom };
}

/**
 * Gutters as wide as the labels need.
 * @param {Scene} scene
 * @returns {Scene["gutter"]}
 */
function fittedGutter(scene) {
  const { gutter } = scene;
  const [queries, keys] = [new SvgDrawing(), new SvgDrawing()];
  drawLabels(queries, scene, "queries");
  drawLabels(keys, scene, "keys");
  const left = gutter.left - (queries.bounds?.left ?? gutter.left) + TITLE;
  const top = gutter.top - (keys.bounds?.top ?? gutter.top) + TITLE;
  return { left, top };
}

/** @param {Scene} scene */
function sinkNote({ sink }) {
  if (!sink) return "";
  return `The colours leave out key ${sink.key}, which receives ${percent(sink.share)} of the attention.`;
}

/**
 * The cells in view, once all have come: a line for each row of them; the first two columns name it, the first two lines
 * name the columns.
 * @param {import("./canvas.js").MapCanvas} map
 */
export async function mapRows(map) {
  await complete(map);
  const { camera, z, state, layer, look, meta } = map.scene();
  const size = 2 ** z;
  const { left, top, right, bottom } = camera.frame;
  const named = (/** @type {Axis} */ axis, /** @type {number} */ index) =>
    visible(tokenAt(axisOf(meta, state.text, layer, axis), index));
  const places = (/** @type {number} */ first, /** @type {number} */ end) => {
    const from = Math.max(0, Math.floor(first / size));
    return Array.from({ length: Math.ceil(end / size) - from }, (_, n) => (from + n) * size);
  };
  const keys = places(left, Math.min(right, layer.cols));
  const value = (/** @type {number} */ query, /** @type {number} */ key) => {
    const { mass = 0, max = 0 } = map.pyramid.cell(query, key, z) ?? {};
    return look.reduce === "max" ? Math.max(0, max) : mass;
  };
  /** @type {TableRow[]} */
  const lines = [
    ["query", "token", ...keys],
    ["", "", ...keys.map((key) => named("keys", key))],
  ];
  for (const query of places(top, Math.min(bottom, layer.rows)))
    lines.push([query, named("queries", query), ...keys.map((key) => value(query, key))]);
  return lines;
}
