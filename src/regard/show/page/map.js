// The Map view: every head as a small map, the chosen one large, down to a single weight.
// It joins camera, gestures, pyramid, picture and notes; each of them knows its own part.

import { Camera } from "./camera.js";
import { makeScale, ramp } from "./colours.js";
import { badge, choice, element } from "./dom.js";
import { listen } from "./gestures.js";
import { grid } from "./grid.js";
import { exporter } from "./export.js";
import { legend, marksOf, noteOf } from "./legend.js";
import { fitTop } from "./paint.js";
import { draw, drawingColours, NUMBERS, STRIP, STRIP_GAP } from "./picture.js";
import { levelFor, Pyramid } from "./pyramid.js";
import { exact, readout } from "./readout.js";
import { layerOf } from "./source.js";
import { theme } from "./theme.js";
import { short, tokenAt } from "./tokens.js";

export function map(root, app) {
  root.classList.add("map");
  const side = element("aside", { class: "map-side", "aria-label": "Every head" });
  const main = element("div", { class: "map-main" });
  const notes = element("aside", { class: "map-notes", "aria-label": "What is read here" });
  root.append(side, main, notes);

  const title = element("h2", { id: "map-title" });
  const proof = element("span", { class: "map-proof" });
  const controls = makeControls(app);
  const stage = element("div", { class: "map-stage" });
  const canvas = element("canvas", {
    tabindex: "0", role: "application", "aria-labelledby": "map-title", "aria-describedby": "map-help",
  });
  const tip = element("p", { class: "tip", "aria-hidden": "true", hidden: true });
  stage.append(canvas, tip);
  const foot = element("div", { class: "map-foot" });
  controls.zooming.append(exporter(app, shownNow, numbersNow));
  const heading = element("div", { class: "map-title" }, title, proof, controls.zooming);
  main.append(heading, controls.bar, stage, foot);

  const pictures = grid(side, app);
  const bar = legend(foot);
  const reading = readout(notes, app);
  notes.append(help());
  const camera = new Camera();
  const pyramid = new Pyramid(app.source, () => plan(), (error) => app.status(error.message));
  const context = canvas.getContext("2d");
  let colours = null;
  let hover = null; // [px, py] in the plot
  let planned = 0;
  let shown = ""; // the text and layer that the camera was set for
  let sink = null; // {key, share, column, sums} of the head, once known
  let fit = { name: "", top: 1 }; // where the colour scale ends, and for what
  let state = app.state;
  let layer = layerOf(app.meta, state.text, state.layer);
  let visible = false;

  function plan() {
    if (!planned && visible) planned = requestAnimationFrame(render);
  }

  /** The sizes of canvas, gutters and picture, from the room that there is. */
  function measure() {
    const box = stage.getBoundingClientRect();
    const narrow = box.width < 560;
    const pixel = 1 / devicePixelRatio;
    const labels = narrow ? 74 : 112;
    const apart = state.sink === "apart" ? STRIP + STRIP_GAP : 0;
    const gutter = { labels, left: labels + apart, top: narrow ? 74 : 96 };
    const [w, h] = [Math.round(box.width / pixel), Math.round(box.height / pixel)];
    if (canvas.width !== w || canvas.height !== h) Object.assign(canvas, { width: w, height: h });
    camera.T = layer.rows;
    camera.S = layer.cols;
    camera.width = Math.max(40, box.width - gutter.left - 2);
    camera.height = Math.max(40, box.height - gutter.top - 2);
    return { width: box.width, height: box.height, gutter, pixel };
  }

  function render() {
    planned = 0;
    if (!visible) return;
    const scene = compose();
    context.setTransform(1 / scene.pixel, 0, 0, 1 / scene.pixel, 0, 0);
    draw(context, scene);
    tell(scene);
  }

  /** All that a drawing of this moment needs. */
  function compose() {
    const size = measure();
    if (state.zoom > 0) camera.settle();
    else camera.fit();
    const z = levelFor(camera.zoom / size.pixel, layer.rows, layer.cols);
    const apart = state.sink === "apart" && sink;
    pyramid.look({
      text: state.text, layer: state.layer, head: state.head, T: layer.rows, S: layer.cols,
      without: apart ? sink.key : null,
    });
    const { drawn, complete } = pyramid.cover(camera.frame, z);
    const restOf = ({ z: level, i }) => (apart ? rests(level, i) : null);
    const scale = scaleFor(z, drawn, complete, restOf);
    const look = { reduce: state.reduce, scale, pixels: ramp().pixels };
    look.style = [theme(), state.reduce, scale.scale, scale.top, scale.bottom, apart ? sink.key : ""].join(" ");
    colours ??= drawingColours(root);
    const over = hover ? cellAt(...hover, z) : null;
    const cursor = state.row >= 0 && state.col >= 0 ? { row: state.row, col: state.col, size: 1 } : null;
    const text = app.meta.texts[state.text];
    return {
      ...size, camera, z, drawn, complete, look, restOf, colours, meta: app.meta, text: state.text, layer,
      thumb: pictures.chosen(state),
      sink: apart, sinkColumn: apart ? sink.column : null,
      restAt: (row) => (apart ? Math.max(LEAST_REST, 1 - sink.column[row]) : 1),
      boundary: boundaryOf(text, layer),
      hover: over, cursor,
      marked: { row: over?.row ?? state.row, col: over?.col ?? state.col },
      weightAt: (row, col) => {
        const found = pyramid.cell(row, col);
        return found && found.z === 0 && found.max >= 0 && !(apart && col === sink.key) ? found.mass : null;
      },
      fonts: {
        token: `11px ${MONO}`, title: `12px ${SANS}`, heading: `15px ${SANS}`,
        number: `${Math.min(13, Math.max(10, Math.floor(camera.zoom / 3.4)))}px ${MONO}`,
      },
      measure: 6.7,
    };
  }

  /** Where the colours end: at 1, or at what fits what is seen, which holds still while it about fits. */
  function scaleFor(z, drawn, complete, restOf) {
    const name = [pyramid.name, z, state.reduce].join(" ");
    if (state.top === "fit" && (complete || name !== fit.name)) {
      const top = fitTop(drawn, camera.frame, state.reduce, restOf);
      const near = fit.name === name && top < fit.top * 1.3 && top > fit.top / 1.3;
      if (!near && drawn.some((one) => one.tile)) fit = { name, top };
    }
    const top = state.top === "fit" ? fit.top : 1;
    const floor = 10 ** Math.floor(Math.log10(0.3 / layer.cols));
    return makeScale({ scale: state.scale, top, bottom: Math.min(floor, top / 10) });
  }

  /** For each row of cells of a tile, what the sink leaves of it. */
  function rests(z, i) {
    const size = 2 ** z;
    const rows = Math.min(256, Math.ceil(layer.rows / size) - i * 256);
    return Float32Array.from({ length: rows }, (_, y) => {
      const from = (i * 256 + y) * size;
      const to = Math.min(layer.rows, from + size);
      return Math.max(LEAST_REST, 1 - (sink.sums[to] - sink.sums[from]) / (to - from));
    });
  }

  /** The cell under a point of the picture, or null outside of the map. */
  function cellAt(px, py, z) {
    const size = 2 ** z;
    const [col, row] = camera.at(px, py).map((place) => Math.floor(place / size) * size);
    if (px < 0 || py < 0 || col < 0 || row < 0 || col >= layer.cols || row >= layer.rows) return null;
    return { row, col, size };
  }

  /** Says in words and numbers what the picture shows. */
  function tell(scene) {
    const apart = scene.sink;
    bar.show({
      scale: scene.look.scale, clipped: isClipped(scene.look.scale), reduce: state.reduce, z: scene.z,
      sink: apart ? { ...sink, token: short(tokenAt(app.meta, state.text, layer, "keys", sink.key), 16) } : null,
    });
    const cell = scene.hover ?? scene.cursor;
    tip.hidden = true;
    if (!cell) return reading.cell(state, layer, null);
    if (cell === scene.cursor) return exactly(scene, cell);
    const found = pyramid.cell(cell.row, cell.col);
    if (found && 2 ** found.z === cell.size) {
      const own = apart && cell.size === 1 && cell.col === sink.key;
      const mass = own ? sink.column[cell.row] : found.mass;
      const read = { ...cell, mass, max: own ? Math.max(mass, found.max) : found.max };
      reading.cell(state, layer, read);
      label(scene, read);
    }
  }

  /** The number beside the cell, for eyes that are on the map. */
  function label({ gutter, width }, cell) {
    if (camera.zoom >= NUMBERS && cell.max >= 0) return; // it is written in the cell
    const [x, y] = camera.point(cell.col + cell.size, cell.row);
    const [left, top] = [gutter.left + x + 10, gutter.top + y - 10];
    if (x < 0 || y < 0 || x > camera.width + camera.zoom * cell.size || y > camera.height) return;
    tip.textContent = cell.max < 0 ? "hidden by the mask" : exact(cell.mass);
    tip.hidden = false;
    const over = left + tip.offsetWidth > width;
    const x0 = over ? left - tip.offsetWidth - 20 - camera.zoom * cell.size : left;
    tip.style.transform = `translate(${Math.round(x0)}px, ${Math.round(Math.max(0, top))}px)`;
  }

  /** The chosen cell's weight comes from its own row, so that it is exact at every zoom. */
  async function exactly(scene, cell) {
    const { text, layer: key, head, row, col } = state;
    const weights = await app.source.row(text, key, head, row);
    const now = app.state;
    if (now.row !== row || now.col !== col || now.layer !== key || now.head !== head || hover) return;
    const found = pyramid.cell(row, col);
    const unseen = weights[col] === 0 && found && found.z === 0 && found.max < 0;
    const read = { ...cell, mass: weights[col], max: unseen ? -1 : weights[col] };
    reading.cell(state, layer, read);
    label(scene, read);
  }

  /** Learns where the head's sink is and how much goes there. */
  async function findSink() {
    const { text, layer: key, head } = state;
    const name = [text, key, head].join(" ");
    if (sink?.name === name || state.sink !== "apart") return;
    const about = layer;
    const { sinks } = await app.source.thumbs(text, key);
    const { key: col } = sinks[about.heads.indexOf(head)];
    const column = await app.source.column(text, key, head, col);
    const sums = new Float64Array(column.length + 1);
    column.forEach((weight, row) => (sums[row + 1] = sums[row] + weight));
    if ([state.text, state.layer, state.head].join(" ") !== name) return;
    sink = { name, key: col, column, sums, share: sums.at(-1) / column.length };
    plan();
  }

  /** What there is to export: the picture of this moment, with its words. */
  function shownNow() {
    const scene = compose();
    const { scale } = scene.look;
    const name = `layer-${layer.key}-head-${state.head}`;
    const words = {
      title: `${app.meta.model}, layer ${layer.key}, head ${state.head}${layer.evidence.certified ? "" : " (not certified)"}`,
      marks: marksOf(scale, isClipped(scale)),
      note: noteOf(state.reduce, scene.z) + (scene.sink ? ` Key ${sink.key} stands apart.` : ""),
    };
    return { scene: { ...scene, hover: null }, words, name };
  }

  /** The numbers in the picture, as they are pooled there. */
  async function numbersNow() {
    const { z } = compose();
    const { text, layer: key, head, reduce } = state;
    const without = pyramid.without;
    const about = layer;
    const size = 2 ** z;
    const { left, top, right, bottom } = camera.frame;
    const edge = (value, all) => Math.min(Math.ceil(all / size), Math.max(0, value));
    const [x0, x1] = [edge(Math.floor(left / size), about.cols), edge(Math.ceil(right / size), about.cols)];
    const [y0, y1] = [edge(Math.floor(top / size), about.rows), edge(Math.ceil(bottom / size), about.rows)];
    const [rows, cols] = [y1 - y0, x1 - x0];
    const values = new Float32Array(rows * cols);
    for (let i = y0 >> 8; i <= (y1 - 1) >> 8; i++) {
      for (let j = x0 >> 8; j <= (x1 - 1) >> 8; j++) {
        const tile = await app.source.tile(text, key, head, z, i, j, { without });
        for (let y = Math.max(y0, i * 256); y < Math.min(y1, i * 256 + tile.rows); y++) {
          for (let x = Math.max(x0, j * 256); x < Math.min(x1, j * 256 + tile.cols); x++) {
            const at = (y - i * 256) * tile.cols + x - j * 256;
            values[(y - y0) * cols + x - x0] = reduce === "max" ? Math.max(0, tile.max[at]) : tile.mass[at];
          }
        }
      }
    }
    return { values, rows, cols, row: y0 * size, col: x0 * size, size, layer: about, meta: app.meta, text };
  }

  const isClipped = (scale) => state.top === "fit" && scale.top < 1;

  /** Remembers in the address what is looked at. */
  function keep() {
    const whole = camera.isWhole;
    app.set({ x: whole ? -1 : camera.x, y: whole ? -1 : camera.y, zoom: whole ? 0 : camera.zoom });
  }

  const inPlot = (px, py) => {
    const { gutter } = measure();
    return [px - gutter.left, py - gutter.top];
  };
  const zoomBy = (factor, px = camera.width / 2, py = camera.height / 2) => {
    camera.zoomAt(factor, px, py);
    keep();
    plan();
  };
  const whole = () => {
    measure();
    camera.fit();
    keep();
    plan();
  };

  /** Goes close enough to read single cells. */
  function closeUp(col, row) {
    measure();
    Object.assign(camera, { x: col + 0.5, y: row + 0.5, zoom: Math.max(camera.zoom * 2, 40) });
    camera.settle();
    keep();
    plan();
  }

  /** Moves the cursor by one cell of what is seen. */
  function step(dx, dy) {
    const z = levelFor(camera.zoom * devicePixelRatio, layer.rows, layer.cols);
    const size = 2 ** z;
    const { left, top, right, bottom } = camera.frame;
    const middle = [left + Math.min(layer.cols, right), top + Math.min(layer.rows, bottom)].map((sum) => sum >> 1);
    const some = state.row >= 0 && state.col >= 0;
    const [col, row] = some ? [state.col + dx * size, state.row + dy * size] : middle;
    const within = (value, all) => Math.min(all - 1, Math.max(0, value));
    hover = null;
    app.set({ col: within(col, layer.cols), row: within(row, layer.rows) });
    camera.reveal(app.state.col, app.state.row);
    keep();
    plan();
  }

  const arrows = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
  const keys = {
    "+": () => zoomAtCursor(1.5), "=": () => zoomAtCursor(1.5), "-": () => zoomAtCursor(1 / 1.5), 0: whole,
    Enter: () => (state.row >= 0 ? closeUp(state.col, state.row) : closeUp(camera.x - 0.5, camera.y - 0.5)),
    Escape: () => app.set({ row: -1, col: -1 }),
    Home: () => step(-layer.cols, 0), End: () => step(layer.cols, 0),
    PageUp: () => step(0, -10), PageDown: () => step(0, 10),
  };
  function zoomAtCursor(factor) {
    if (state.row < 0 || state.col < 0) return zoomBy(factor);
    return zoomBy(factor, ...camera.point(state.col + 0.5, state.row + 0.5));
  }

  listen(canvas, {
    pan(dx, dy) {
      camera.pan(dx, dy);
      keep();
      plan();
    },
    zoom: (factor, px, py) => zoomBy(factor, ...inPlot(px, py)),
    hover(px, py) {
      hover = px === null ? null : inPlot(px, py);
      plan();
    },
    tap(px, py) {
      const cell = cellAt(...inPlot(px, py), 0);
      canvas.focus({ preventScroll: true });
      app.set(cell ? { row: cell.row, col: cell.col } : { row: -1, col: -1 });
    },
    double(px, py) {
      const cell = cellAt(...inPlot(px, py), 0);
      if (cell) closeUp(cell.col, cell.row);
    },
    key(name, event) {
      if (arrows[name]) {
        const [dx, dy] = arrows[name];
        if (event.shiftKey) {
          camera.pan((-dx * camera.width) / 4, (-dy * camera.height) / 4);
          keep();
          plan();
        } else step(dx, dy);
        return true;
      }
      keys[name]?.();
      return name in keys;
    },
  });
  controls.zoom(zoomBy, whole);
  new ResizeObserver(() => plan()).observe(stage);
  addEventListener("regard-theme", () => {
    colours = null;
    plan();
  });

  return {
    show(next) {
      visible = true;
      state = next;
      layer = layerOf(app.meta, state.text, state.layer);
      const name = `${state.text} ${layer.rows} ${layer.cols}`;
      measure();
      if (state.zoom > 0) Object.assign(camera, { x: state.x, y: state.y, zoom: state.zoom });
      else if (name !== shown || !camera.isWhole) camera.fit();
      shown = name;
      title.textContent = `Layer ${layer.key}, head ${state.head}`;
      proof.replaceChildren(badge(layer.evidence));
      pictures.show(state);
      controls.show(state);
      reading.layer(state, layer);
      reading.row(state, layer);
      findSink();
      plan();
    },
    hide() {
      visible = false;
    },
  };
}

const LEAST_REST = 0.01; // of a query's attention: what it leaves beside its sink is not blown up further
const MONO = 'ui-monospace, "SF Mono", "Cascadia Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace';
const SANS = 'system-ui, -apple-system, "Segoe UI", "Helvetica Neue", Arial, sans-serif';

/** The first generated token on both axes, if there is one. */
function boundaryOf(text, layer) {
  if (text.boundary === null || layer.keys_from === null) return null;
  return { key: text.boundary - layer.keys_from, query: text.boundary - layer.queries_from };
}

/** How the map is moved, in few words. */
function help() {
  const list = element("dl", { class: "facts spoken" });
  const lines = [
    ["drag", "move"], ["wheel, pinch", "zoom"], ["click", "keep a cell"], ["double click", "go to a cell"],
    ["arrows", "choose a cell"], ["⇧ arrows", "move"], ["+ − 0", "zoom, show all"], ["Enter", "go to the cell"],
  ];
  for (const [hand, does] of lines) list.append(element("dt", { class: "mono", text: hand }), element("dd", { text: does }));
  return element("div", { class: "notes-block", id: "map-help" }, element("h3", { text: "By hand and by key" }), list);
}

function makeControls(app) {
  const bar = element("div", { class: "map-bar", role: "toolbar", "aria-label": "How the map is drawn" });
  const choices = {
    scale: choice("Scale", "scale", { linear: "linear", log: "log" }, (scale) => app.set({ scale })),
    top: choice("Up to", "top", { fit: "fit", one: "1" }, (top) => app.set({ top })),
    reduce: choice("Cells", "reduce", { mass: "mass", max: "max" }, (reduce) => app.set({ reduce })),
    sink: choice("Sink", "sink", { in: "in place", apart: "apart" }, (sink) => app.set({ sink })),
  };
  const button = (text, label) => element("button", { class: "button", type: "button", text, "aria-label": label, title: label });
  const [out, into, all] = [button("−", "Zoom out"), button("+", "Zoom in"), button("All", "Show the whole map")];
  bar.append(...Object.values(choices));
  const zooming = element("div", { class: "push", role: "group", "aria-label": "Zoom" }, out, into, all);
  return {
    bar,
    zooming,
    show(state) {
      for (const [name, one] of Object.entries(choices)) one.value = state[name];
    },
    zoom(by, whole) {
      out.addEventListener("click", () => by(1 / 1.6));
      into.addEventListener("click", () => by(1.6));
      all.addEventListener("click", whole);
    },
  };
}
