// @ts-check
// The large map: a canvas that is moved, zoomed and pointed at. It joins camera, gestures, pyramid, picture.
// What it shows it says to those who listen; words and controls around it are the business of `map.js`.

import { makeScale, ramp } from "../common/colours.js";
import { contextOf, element } from "../common/dom.js";
import { theme } from "../common/theme.js";
import { Camera } from "./camera.js";
import { listen } from "./gestures.js";
import { fitTop } from "./paint.js";
import { draw, drawingColours, STRIP, STRIP_GAP } from "./picture.js";
import { findSink } from "./sinks.js";
import { levelFor, TilePyramid } from "./tiles.js";

const MONO = 'ui-monospace, "SF Mono", "Cascadia Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace';
const SANS = 'system-ui, -apple-system, "Segoe UI", "Helvetica Neue", Arial, sans-serif';
const STILL = 160; // milliseconds without movement after which the address and the colours follow

/**
 * Fills `root`. `thumb()` gives the small picture of the chosen head or null; `drawn(scene)` is called after
 * every drawing. Returns {canvas, show, hide, plan, scene, pyramid, camera, zoomBy, whole}.
 * @param {HTMLElement} root
 * @param {App} app
 * @param {{ thumb: () => HTMLCanvasElement | null, drawn: (scene: Scene) => void }} hooks
 */
export function mapCanvas(root, app, { thumb, drawn }) {
  const canvas = element("canvas", {
    tabindex: "0",
    role: "application",
    "aria-labelledby": "map-title",
    "aria-describedby": "map-help",
  });
  root.append(canvas);
  const context = contextOf(canvas);
  const camera = new Camera();
  const pyramid = new TilePyramid(app.source, arrived, (error) => app.status(error.message));
  /** @type {State} */
  let state;
  /** @type {Layer} */
  let layer;
  /** @type {DrawingColours | null} */
  let colours = null;
  /** @type {[number, number] | null} */
  let hover = null; // [px, py] in the picture
  let planned = 0;
  let visible = false;
  let fitted = true; // the whole map is shown, whatever the room
  let kept = ""; // the place that the state knows
  /** @type {Sink | null} */
  let sink = null; // of the head, once it is known
  let sinkOf = ""; // and whose it is
  /** @type {{ name: string, top: number, asked: boolean, sure?: boolean }} */
  let fit = { name: "", top: 1, asked: true }; // where the colours end, for what, and whether to look again
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let timer = 0;

  function plan() {
    if (!planned && visible) planned = requestAnimationFrame(render);
  }

  function arrived() {
    fit.asked = true;
    plan();
  }

  function render() {
    planned = 0;
    if (!visible) return;
    const now = scene();
    context.setTransform(1 / now.pixel, 0, 0, 1 / now.pixel, 0, 0);
    draw(context, now);
    drawn(now);
  }

  /** The sizes of canvas, gutters and picture, from the room that there is. */
  function measure() {
    const box = root.getBoundingClientRect();
    const narrow = box.width < 560;
    const pixel = 1 / devicePixelRatio;
    const labels = narrow ? 74 : 112;
    const apart = state.sink === "apart" ? STRIP + STRIP_GAP : 0;
    const gutter = { labels, left: labels + apart, top: narrow ? 74 : 96 };
    const [w, h] = [Math.round(box.width / pixel), Math.round(box.height / pixel)];
    if (canvas.width !== w || canvas.height !== h) Object.assign(canvas, { width: w, height: h });
    Object.assign(camera, { T: layer.rows, S: layer.cols });
    camera.width = Math.max(40, box.width - gutter.left - 2);
    camera.height = Math.max(40, box.height - gutter.top - 2);
    if (fitted) camera.fit();
    else camera.settle();
    return { width: box.width, height: box.height, gutter, pixel };
  }

  /**
   * All that a drawing of this moment needs (see `types.d.ts`).
   * @returns {Scene}
   */
  function scene() {
    const size = measure();
    const z = levelFor(camera.zoom / size.pixel, layer.rows, layer.cols);
    const apart = state.sink === "apart" ? sink : null;
    pyramid.look({
      text: state.text,
      layer: layer.key,
      head: state.head,
      T: layer.rows,
      S: layer.cols,
      without: apart ? apart.key : null,
    });
    const cover = pyramid.cover(camera.frame, z);
    /** @type {Scene["restOf"]} */
    const restOf = ({ z: level, i }) => (apart ? apart.rests(level, i) : null);
    const scale = scaleFor(z, cover, restOf);
    const style = [theme(), state.reduce, scale.scale, scale.top, scale.bottom, apart?.key].join(" ");
    const look = { reduce: state.reduce, scale, pixels: ramp().pixels, style };
    colours ??= drawingColours(root);
    const over = hover ? cellAt(...hover, z) : null;
    return {
      ...size,
      ...cover,
      camera,
      z,
      look,
      restOf,
      colours,
      meta: app.meta,
      text: state.text,
      state,
      layer,
      thumb: thumb(),
      sink: apart,
      boundary: boundaryOf(app.meta.texts[state.text], layer),
      hover: over,
      cursor: state.row >= 0 && state.col >= 0 ? { row: state.row, col: state.col, size: 1 } : null,
      marked: { row: over?.row ?? state.row, col: over?.col ?? state.col },
      restAt: (row) => (apart ? apart.rest(row, row + 1) : 1),
      weightAt: (row, col) => {
        const found = pyramid.cell(row, col);
        return found && found.z === 0 && found.max >= 0 && !(apart && col === apart.key) ? found.mass : null;
      },
      fonts: {
        token: `11px ${MONO}`,
        title: `12px ${SANS}`,
        heading: `15px ${SANS}`,
        number: `${Math.min(13, Math.max(10, Math.floor(camera.zoom / 3.4)))}px ${MONO}`,
      },
      measure: 6.7, // pixels of a letter in a token
    };
  }

  /**
   * Where the colours end: at 1, or at what fits what is seen. They hold still while it about fits.
   * @param {number} z
   * @param {{ drawn: DrawnTile[], complete: boolean }} cover
   * @param {Scene["restOf"]} restOf
   */
  function scaleFor(z, { drawn: tiles, complete }, restOf) {
    const name = [pyramid.name, z, state.reduce].join(" ");
    const due = name !== fit.name || (fit.asked && complete);
    if (state.colourTop === "fit" && due && tiles.some((one) => one.tile)) {
      const top = fitTop(tiles, camera.frame, state.reduce, restOf);
      const near = fit.name === name && fit.sure && top < fit.top * 1.3 && top > fit.top / 1.3;
      fit = { name, top: near ? fit.top : top, asked: false, sure: complete };
    }
    const top = state.colourTop === "fit" ? fit.top : 1;
    const floor = 10 ** Math.floor(Math.log10(0.3 / layer.cols));
    return makeScale({ scale: state.scale, top, bottom: Math.min(floor, top / 10) });
  }

  /**
   * The cell under a point of the picture, or null outside of the map.
   * @param {number} px
   * @param {number} py
   * @param {number} z
   * @returns {Cell | null}
   */
  function cellAt(px, py, z) {
    const size = 2 ** z;
    const [col, row] = camera.at(px, py).map((place) => Math.floor(place / size) * size);
    if (px < 0 || py < 0 || col < 0 || row < 0 || col >= layer.cols || row >= layer.rows) return null;
    return { row, col, size };
  }

  /** After a movement: draws it, and once it rests remembers it in the address. */
  function moved() {
    fitted = camera.isWhole;
    clearTimeout(timer);
    timer = setTimeout(() => {
      const place = fitted ? { x: -1, y: -1, zoom: 0 } : { x: camera.x, y: camera.y, zoom: camera.zoom };
      kept = nameOf({ ...state, ...place });
      app.set(place);
      arrived();
    }, STILL);
    plan();
  }

  /** @param {Pick<State, "text" | "x" | "y" | "zoom">} place */
  const nameOf = ({ text, x, y, zoom }) => [text, layer.rows, layer.cols, x, y, zoom].join(" ");
  /**
   * @param {number} px
   * @param {number} py
   * @returns {[number, number]}
   */
  const inPicture = (px, py) => {
    const { gutter } = measure();
    return [px - gutter.left, py - gutter.top];
  };

  /**
   * @param {number} factor
   * @param {number} [px]
   * @param {number} [py]
   */
  function zoomBy(factor, px = camera.width / 2, py = camera.height / 2) {
    camera.zoomAt(factor, px, py);
    moved();
  }

  function whole() {
    camera.fit();
    moved();
  }

  /**
   * Goes close enough to read single cells.
   * @param {number} col
   * @param {number} row
   */
  function closeUp(col, row) {
    Object.assign(camera, { x: col + 0.5, y: row + 0.5, zoom: Math.max(camera.zoom * 2, 40) });
    camera.settle();
    moved();
  }

  /**
   * Moves the chosen cell by one of those that are seen.
   * @param {number} dx
   * @param {number} dy
   */
  function step(dx, dy) {
    const size = 2 ** levelFor(camera.zoom * devicePixelRatio, layer.rows, layer.cols);
    const { left, top, right, bottom } = camera.frame;
    /**
     * @param {number} first
     * @param {number} last
     */
    const middle = (first, last) => Math.floor((first + last) / 2);
    const some = state.row >= 0 && state.col >= 0;
    const col = some ? state.col + dx * size : middle(left, Math.min(layer.cols, right));
    const row = some ? state.row + dy * size : middle(top, Math.min(layer.rows, bottom));
    /**
     * @param {number} value
     * @param {number} all
     */
    const within = (value, all) => Math.min(all - 1, Math.max(0, value));
    hover = null;
    app.set({ col: within(col, layer.cols), row: within(row, layer.rows) });
    const { x, y } = camera;
    camera.reveal(state.col, state.row);
    if (camera.x !== x || camera.y !== y) moved();
    plan();
  }

  /** @param {number} factor */
  function zoomAtCursor(factor) {
    const some = state.row >= 0 && state.col >= 0;
    zoomBy(factor, ...(some ? camera.point(state.col + 0.5, state.row + 0.5) : []));
  }

  /** @type {Record<string, [number, number]>} */
  const arrows = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
  /** @type {Record<string, () => void>} */
  const keys = {
    "+": () => zoomAtCursor(1.5),
    "=": () => zoomAtCursor(1.5),
    "-": () => zoomAtCursor(1 / 1.5),
    0: whole,
    Enter: () => (state.row >= 0 ? closeUp(state.col, state.row) : closeUp(camera.x - 0.5, camera.y - 0.5)),
    Escape: () => app.set({ row: -1, col: -1 }),
    Home: () => step(-layer.cols, 0),
    End: () => step(layer.cols, 0),
    PageUp: () => step(0, -10),
    PageDown: () => step(0, 10),
  };

  listen(canvas, {
    pan(dx, dy) {
      camera.pan(dx, dy);
      moved();
    },
    zoom: (factor, px, py) => zoomBy(factor, ...inPicture(px, py)),
    hover(point) {
      hover = point && inPicture(...point);
      plan();
    },
    tap(px, py) {
      const cell = cellAt(...inPicture(px, py), 0);
      canvas.focus({ preventScroll: true });
      app.set(cell ? { row: cell.row, col: cell.col } : { row: -1, col: -1 });
    },
    double(px, py) {
      const cell = cellAt(...inPicture(px, py), 0);
      if (cell) closeUp(cell.col, cell.row);
    },
    key(name, event) {
      if (arrows[name] && event.shiftKey) {
        const [dx, dy] = arrows[name];
        camera.pan((-dx * camera.width) / 4, (-dy * camera.height) / 4);
        moved();
      } else if (arrows[name]) step(...arrows[name]);
      else keys[name]?.();
      return name in keys || name in arrows;
    },
  });
  new ResizeObserver(plan).observe(root);
  addEventListener("regard-theme", () => {
    colours = null;
    plan();
  });

  /** Learns where the head's sink is and how much goes there. */
  async function seekSink() {
    const name = [state.text, layer.key, state.head].join(" ");
    if (state.sink !== "apart" || name === sinkOf) return;
    sinkOf = name;
    sink = null;
    const found = await findSink(app.source, state.text, layer, state.head);
    if (name !== sinkOf) return;
    sink = found;
    arrived();
  }

  return {
    canvas,
    camera,
    pyramid,
    plan,
    scene,
    whole,
    zoomBy,
    /**
     * @param {State} next
     * @param {Layer} about
     */
    show(next, about) {
      [state, layer, visible] = [next, about, true];
      const place = nameOf(state);
      if (place !== kept) {
        fitted = !(state.zoom > 0);
        if (!fitted) Object.assign(camera, { x: state.x, y: state.y, zoom: state.zoom });
        kept = place;
      }
      fit.asked = true;
      seekSink();
      plan();
    },
    hide() {
      visible = false;
      hover = null;
    },
  };
}

/**
 * The first generated token on both axes, if there is one.
 * @param {TextMeta} text
 * @param {Layer} layer
 */
function boundaryOf(text, layer) {
  if (text.boundary === null || layer.keys_from === null || layer.queries_from === null) return null;
  return { key: text.boundary - layer.keys_from, query: text.boundary - layer.queries_from };
}
