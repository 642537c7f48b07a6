// @ts-check
// The large map: a canvas that is moved, zoomed and pointed at. It joins camera, gestures, pyramid, picture.
// What it shows it says to those who listen; words and controls around it are the business of `map.js`.

import { ramp } from "../parts/colours.js";
import { ARROWS, contextOf, element } from "../parts/dom.js";
import { mapScale } from "../parts/map_scale.js";
import { ProgressPanel } from "../parts/progress_panel.js";
import { areWeights, isSigned, PLAIN } from "../data/quantity.js";
import { theme } from "../parts/theme.js";
import { drawings } from "../picture/canvas_drawings.js";
import { firstToken, unitAt } from "../data/units.js";
import { Camera, boundaryOf, cellAt, cellBeside, mapLayout } from "./camera.js";
import { WHOLE } from "../data/settings.js";
import { paperScene } from "./figure.js";
import { ColourFit, fitTop } from "./tile_image.js";
import { listen } from "./gestures.js";
import { draw, drawingColours } from "./heatmap.js";
import { levelFor, TilePyramid } from "./tiles.js";

const MONO = 'ui-monospace, "SF Mono", "Cascadia Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace';
const SANS = 'system-ui, -apple-system, "Segoe UI", "Helvetica Neue", Arial, sans-serif';
const STILL = 160; // milliseconds without movement after which the address and the colours follow

/**
 * @typedef {object} MapHooks
 * @property {() => HTMLCanvasElement | null} thumb
 * @property {(scene: Scene) => void} drawn
 */

/**
 * Fills `root`. `hooks.thumb()` gives the thumbnail of the chosen head or null; `hooks.drawn(scene)` is called
 * after every drawing.
 */
export class MapCanvas {
  /**
   * @param {HTMLElement} root
   * @param {App} app
   * @param {Layer} layer
   * @param {MapHooks} hooks
   */
  constructor(root, app, layer, hooks) {
    this.root = root;
    this.app = app;
    this.hooks = hooks;
    this.state = app.state;
    this.layer = layer;
    this.quantity = PLAIN;
    this.canvas = element("canvas", {
      tabindex: "0",
      role: "application",
      "aria-labelledby": "map-title",
      "aria-describedby": "map-help",
    });
    this.context = contextOf(this.canvas);
    drawings.set(this.canvas, (context) => {
      this.colours = null; // the page has those of paper at this moment
      draw(context, paperScene(this.scene()));
      this.colours = null;
    });
    this.camera = new Camera();
    this.pyramid = new TilePyramid(
      app.source,
      () => this.refresh(),
      (error) => app.status(error.message),
    );
    this.fit = new ColourFit();
    /** @type {DrawingColours | null} */
    this.colours = null; // from the style sheet
    /** @type {Point | null} */
    this.hover = null; // in the picture
    this.planned = 0; // the drawing that is due
    this.visible = false;
    this.whole = true; // the whole map is shown, whatever the room
    this.kept = ""; // the place that the state knows
    /** @type {Sink | null} */
    this.sink = null; // of the head, once it is known
    this.sinkOf = ""; // and whose it is
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    this.timer = 0;
    root.append(this.canvas);
    this.progress = new ProgressPanel("over-map");
    root.append(this.progress.box);
    listen(this.canvas, this.wishes());
    new ResizeObserver(() => this.plan()).observe(root);
    addEventListener("regard-theme", () => {
      this.colours = null;
      this.plan();
    });
  }

  /**
   * The layer's rows and columns, and the chosen row and column of the state, are units of the quantity.
   * @param {State} state
   * @param {Layer} layer
   * @param {Quantity} quantity
   */
  show(state, layer, quantity) {
    [this.state, this.layer, this.quantity, this.visible] = [state, layer, quantity, true];
    const place = this.placeName(state);
    if (place !== this.kept) {
      this.whole = !(state.zoom > 0);
      if (!this.whole) Object.assign(this.camera, { x: state.x, y: state.y, zoom: state.zoom });
      this.kept = place;
    }
    this.seekSink();
    this.refresh();
  }

  hide() {
    this.visible = false;
    this.hover = null;
  }

  /** Draws before the next frame. */
  plan() {
    if (!this.planned && this.visible) this.planned = requestAnimationFrame(() => this.render());
  }

  /** Draws, and lets the colours follow. */
  refresh() {
    this.fit.asked = true;
    this.plan();
  }

  render() {
    this.planned = 0;
    if (!this.visible) return;
    const scene = this.scene();
    this.context.setTransform(1 / scene.pixel, 0, 0, 1 / scene.pixel, 0, 0);
    draw(this.context, scene);
    this.followTiles(scene);
    this.hooks.drawn(scene);
  }

  /**
   * Says how many tiles are missing, with a button to cancel their computation.
   * @param {{ missing: number, needed: number }} cover
   */
  followTiles({ missing, needed }) {
    const { pyramid, progress } = this;
    const go = (/** @type {boolean} */ on) => {
      pyramid.stopped = !on;
      progress.hide();
      this.plan();
    };
    const ways = { stop: () => go(false), resume: () => go(true) };
    const work = { done: needed - missing, of: needed, stopped: pyramid.stopped, ...ways };
    progress.followWork(work, "Computing this head", "parts of this map");
  }

  /** The sizes of canvas and gutters, from the room that there is; the camera follows. */
  measure() {
    const { camera, canvas, layer } = this;
    const room = this.root.getBoundingClientRect();
    const layout = mapLayout(room, devicePixelRatio);
    const { gutter, pixel } = layout;
    const [width, height] = [Math.round(room.width / pixel), Math.round(room.height / pixel)];
    if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
    Object.assign(camera, { T: layer.rows, S: layer.cols });
    camera.width = Math.max(40, room.width - gutter.left - 2);
    camera.height = Math.max(40, room.height - gutter.top - 2);
    if (this.whole) camera.fit();
    else camera.settle();
    return layout;
  }

  /**
   * All that a drawing of this moment needs (see `types.d.ts`).
   * @returns {Scene}
   */
  scene() {
    const { state, layer, camera, app } = this;
    const layout = this.measure();
    const z = levelFor(camera.zoom / layout.pixel, layer.rows, layer.cols);
    const sink = this.isSinkApart ? this.sink : null;
    const { text, head } = state;
    this.pyramid.look({
      text,
      layer: layer.key,
      head,
      T: layer.rows,
      S: layer.cols,
      quantity: this.quantity,
    });
    const cover = this.pyramid.cover(camera.frame, z);
    this.colours ??= drawingColours(this.root);
    const hover = this.hover ? cellAt(camera, layer, this.hover, z) : null;
    return {
      ...layout,
      ...cover,
      camera,
      z,
      look: this.look(z, cover, sink),
      colours: this.colours,
      meta: app.meta,
      text: state.text,
      state,
      layer,
      quantity: this.quantity,
      thumb: this.quantity.units === "tokens" ? this.hooks.thumb() : null,
      sink,
      boundary: boundaryOf(app.meta.texts[state.text], layer),
      hover,
      cursor: this.chosen && { ...this.chosen, size: 1 },
      marked: { row: hover?.row ?? this.markedRow, col: hover?.col ?? state.col },
      weightAt: (row, col) => {
        const cell = this.pyramid.cell(row, col);
        return cell && cell.z === 0 && cell.max >= 0 ? cell.mass : null;
      },
      fonts: fontsFor(camera.zoom),
    };
  }

  /**
   * How the tiles are painted.
   * @param {number} z
   * @param {{ drawn: DrawnTile[], complete: boolean }} cover
   * @param {Sink | null} sink that the colours leave out
   * @returns {Look}
   */
  look(z, cover, sink) {
    const { fit, layer, quantity } = this;
    const reduce = areWeights(quantity) ? this.state.reduce : "mass";
    const bounded = quantity.shade === "weights"; // by 1
    const fits = this.state.colourTop !== "one" || !bounded;
    if (fits) this.fitColours(z, cover, reduce, sink?.key ?? -1, bounded ? 1 : Infinity);
    const scale = mapScale(this.state.scale, this.colourEnd(fits ? fit.top : 1), layer.cols, quantity);
    const style = [theme(), reduce, scale.scale, scale.top, scale.bottom, scale.signed].join(" ");
    const blank = fits && fit.top === 0;
    return { reduce, scale, blank, pixels: ramp(theme(), isSigned(quantity)).pixels, style };
  }

  /**
   * The number at the end of the colours, from that which this map needs.
   * @param {number} own
   */
  colourEnd(own) {
    return own;
  }

  /**
   * Fits the end of the colours to the whole map, so that they stay when it moves; or to the part in view.
   * @param {number} z
   * @param {{ drawn: DrawnTile[], complete: boolean }} cover
   * @param {string} reduce
   * @param {number} without a key that is left out, or -1
   * @param {number} most
   */
  fitColours(z, cover, reduce, without, most) {
    const { fit, camera, layer, pyramid } = this;
    const whole = { left: 0, top: 0, right: layer.cols, bottom: layer.rows };
    const inView = this.state.colourTop === "view";
    const [frame, cells] = inView ? [camera.frame, cover] : [whole, pyramid.overview()];
    const name = [pyramid.name, reduce, without, inView ? z : "whole"].join(" ");
    fit.update(name, cells, () => fitTop(cells.drawn, frame, reduce, without, most));
  }

  /** Whether the colours leave the sink out; contributions, words and sentences have no sink. */
  get isSinkApart() {
    return this.state.sink === "apart" && areWeights(this.quantity) && this.quantity.units === "tokens";
  }

  /**
   * Chooses a cell.
   * @param {{ row: number, col: number }} cell -1 for none
   */
  choose({ row, col }) {
    const { layer } = this;
    this.app.set({ row: firstToken(layer, "queries", row), col: firstToken(layer, "keys", col) });
  }

  /** The row whose label stands out: the chosen one, or that of contributions to a logit. */
  get markedRow() {
    const { row } = this.state;
    return row >= 0 ? row : unitAt(this.layer, "queries", this.quantity.position);
  }

  /** The cell that is chosen, if one is. */
  get chosen() {
    const { row, col } = this.state;
    return row >= 0 && col >= 0 ? { row, col } : null;
  }

  /** After a movement: draws it, and once it rests remembers it in the address. */
  moved() {
    const { camera } = this;
    this.whole = camera.isWhole;
    clearTimeout(this.timer);
    this.timer = setTimeout(() => {
      const place = this.whole ? WHOLE : { x: camera.x, y: camera.y, zoom: camera.zoom };
      this.kept = this.placeName({ ...this.state, ...place });
      this.app.set(place);
      this.refresh();
    }, STILL);
    this.plan();
  }

  /** @param {Pick<State, "text" | "x" | "y" | "zoom">} place */
  placeName({ text, x, y, zoom }) {
    return [text, this.layer.rows, this.layer.cols, x, y, zoom].join(" ");
  }

  /**
   * From a point of the canvas to one of the picture.
   * @param {Point} point
   * @returns {Point}
   */
  inPicture([px, py]) {
    const { gutter } = this.measure();
    return [px - gutter.left, py - gutter.top];
  }

  /**
   * @param {number} factor
   * @param {Point} [point] that stays where it is
   */
  zoomBy(factor, point = [this.camera.width / 2, this.camera.height / 2]) {
    this.camera.zoomAt(factor, point);
    this.moved();
  }

  showWhole() {
    this.camera.fit();
    this.moved();
  }

  /** @param {Point} by pixels */
  pan(by) {
    this.camera.pan(by);
    this.moved();
  }

  /**
   * Goes close enough to read single cells.
   * @param {{ row: number, col: number }} cell
   */
  closeUp({ row, col }) {
    const { camera } = this;
    Object.assign(camera, { x: col + 0.5, y: row + 0.5, zoom: Math.max(camera.zoom * 2, 40) });
    camera.settle();
    this.moved();
  }

  /**
   * Moves the chosen cell by some of those that are seen.
   * @param {Point} by columns and rows
   */
  step(by) {
    const { camera, layer } = this;
    const size = 2 ** levelFor(camera.zoom * devicePixelRatio, layer.rows, layer.cols);
    this.hover = null;
    this.choose(cellBeside(this.chosen, by, size, camera.frame, layer));
    const { x, y } = camera;
    camera.reveal(this.state);
    if (camera.x !== x || camera.y !== y) this.moved();
    this.plan();
  }

  /**
   * What the reader's hand does.
   * @returns {import("./gestures.js").Wishes}
   */
  wishes() {
    const cell = (/** @type {Point} */ point) => cellAt(this.camera, this.layer, this.inPicture(point), 0);
    return {
      pan: (by) => this.pan(by),
      zoom: (factor, point) => this.zoomBy(factor, this.inPicture(point)),
      hover: (point) => {
        this.hover = point && this.inPicture(point);
        this.plan();
      },
      tap: (point) => {
        this.canvas.focus({ preventScroll: true });
        this.choose(cell(point) ?? { row: -1, col: -1 });
      },
      double: (point) => {
        const at = cell(point);
        if (at) this.closeUp(at);
      },
      key: (name, shift) => this.press(name, shift),
    };
  }

  /**
   * Does what a key asks for; says whether there was something to do.
   * @param {string} key
   * @param {boolean} shift
   */
  press(key, shift) {
    const { camera, layer, state } = this;
    const [down, right] = ARROWS[key] ?? [0, 0];
    if (ARROWS[key] && shift) this.pan([(-right * camera.width) / 4, (-down * camera.height) / 4]);
    else if (ARROWS[key]) this.step([right, down]);
    else if (key === "+" || key === "=") this.zoomAtCursor(1.5);
    else if (key === "-") this.zoomAtCursor(1 / 1.5);
    else if (key === "0") this.showWhole();
    else if (key === "Enter")
      this.closeUp(state.row >= 0 ? state : { row: camera.y - 0.5, col: camera.x - 0.5 });
    else if (key === "Escape") this.app.set({ row: -1, col: -1 });
    else if (key === "Home") this.step([-layer.cols, 0]);
    else if (key === "End") this.step([layer.cols, 0]);
    else if (key === "PageUp") this.step([0, -10]);
    else if (key === "PageDown") this.step([0, 10]);
    else return false;
    return true;
  }

  /** @param {number} factor */
  zoomAtCursor(factor) {
    const { chosen, camera } = this;
    this.zoomBy(factor, chosen ? camera.point([chosen.col + 0.5, chosen.row + 0.5]) : undefined);
  }

  /** Learns which key is the head's sink and how much goes there. */
  async seekSink() {
    const { state, layer } = this;
    const name = [state.text, layer.key, state.head].join(" ");
    if (!this.isSinkApart || name === this.sinkOf) return;
    this.sinkOf = name;
    this.sink = null;
    const { sinks } = await this.app.source.thumbs(state.text, layer.key);
    if (name !== this.sinkOf) return;
    this.sink = sinks[layer.heads.indexOf(state.head)];
    this.refresh();
  }
}

/**
 * Numbers in cells grow with the cells, within bounds.
 * @param {number} zoom
 */
function fontsFor(zoom) {
  return {
    token: `11px ${MONO}`,
    title: `12px ${SANS}`,
    number: `${Math.min(13, Math.max(10, Math.floor(zoom / 3.4)))}px ${MONO}`,
  };
}
