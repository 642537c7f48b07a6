// @ts-check
// The notebook's side of a widget, a module as anywidget loads it: it stands the page up in a sandboxed frame and
// passes messages on between the page's port and the kernel (`widget.py`). The page's code comes from the kernel once
// for all widgets of a notebook. This file stands alone: it is not part of the page's bundle.

const PAGES = Symbol.for("regard.pages"); // the page's code by its hash, for every widget of this notebook
const PATIENCE = 8000; // milliseconds without any answer before the reader is told
const BUSY =
  "The kernel has not answered for a while. If it is running a cell, the answer comes when it is free; if it was " +
  "stopped or restarted, run the cell of this page again.";
const GONE = "The kernel was stopped or restarted, so this page gets no more numbers. Run its cell again.";

/**
 * The messages of one view: its questions have numbers of their own, whatever other views of the same widget ask.
 * @param {NotebookModel} model
 */
function openChannel(model) {
  const prefix = `${Math.random().toString(36).slice(2)}:`;
  /** @type {Map<string, (message: any, content: ArrayBuffer | null) => void>} */
  const waiting = new Map();
  /** @type {((isWaiting: boolean) => void)[]} */
  const listeners = [];
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let timer;
  const watch = () => {
    clearTimeout(timer);
    if (waiting.size) timer = setTimeout(() => listeners.forEach((tell) => tell(true)), PATIENCE);
  };
  const receive = (/** @type {any} */ message, /** @type {unknown} */ buffers) => {
    const take = typeof message?.id === "string" ? waiting.get(message.id) : undefined;
    if (!take) return; // another view's
    if (message.kind !== "line") waiting.delete(message.id);
    listeners.forEach((tell) => tell(false));
    watch();
    take(message, Array.isArray(buffers) && buffers.length ? toBuffer(buffers[0]) : null);
  };
  model.on("msg:custom", receive);
  return {
    /**
     * Sends a question; `take` gets every message about it.
     * @param {any} message
     * @param {(message: any, content: ArrayBuffer | null) => void} take
     */
    ask(message, take) {
      const id = prefix + message.id;
      waiting.set(id, take);
      model.send({ ...message, id });
      if (waiting.size === 1) watch();
    },
    /** @param {number} id */
    stop(id) {
      if (waiting.delete(prefix + id)) model.send({ kind: "stop", id: prefix + id });
      watch();
    },
    /** @param {(isWaiting: boolean) => void} tell called when the kernel lets the reader wait, or answers again */
    onPatience: (tell) => listeners.push(tell),
    close() {
      clearTimeout(timer);
      for (const id of waiting.keys()) model.send({ kind: "stop", id });
      model.off("msg:custom", receive);
    },
  };
}

/**
 * The bytes of a message's buffer in an array of their own, so that they can be handed on.
 * @param {DataView | ArrayBuffer | Uint8Array} buffer
 */
function toBuffer(buffer) {
  const view = buffer instanceof ArrayBuffer ? new Uint8Array(buffer) : buffer;
  return /** @type {ArrayBuffer} */ (view.buffer.slice(view.byteOffset, view.byteOffset + view.byteLength));
}

/**
 * The page's code: from another widget of this notebook, or from the kernel.
 * @param {string} hash
 * @param {ReturnType<typeof openChannel>} channel
 * @returns {Promise<string>}
 */
async function pageCode(hash, channel) {
  const kept = /** @type {Map<string, string>} */ (/** @type {any} */ (globalThis)[PAGES] ??= new Map());
  const known = kept.get(hash);
  if (known !== undefined) return known;
  const code = await new Promise((resolve, reject) => {
    channel.ask({ kind: "page", id: 0 }, (message, content) =>
      content ? resolve(new TextDecoder().decode(content)) : reject(new Error(message.error)),
    );
  });
  kept.set(hash, code);
  return code;
}

/**
 * What the widget's traits say of the selection.
 * @param {NotebookModel} model
 * @returns {NotebookSelection}
 */
function selectionOf(model) {
  const [layer, head] = model.get("head");
  const [row, col] = model.get("cell") ?? [-1, -1];
  return {
    view: model.get("view"),
    text: model.get("text"),
    layer: String(layer),
    head,
    row: row ?? -1,
    col: col ?? -1,
  };
}

/**
 * Tells the widget what the reader has selected.
 * @param {NotebookModel} model
 * @param {NotebookSelection} selection
 */
function select(model, { view, text, layer, head, row, col }) {
  const now = selectionOf(model);
  if (now.view !== view) model.set("view", view);
  if (now.text !== text) model.set("text", text);
  if (now.layer !== layer || now.head !== head) model.set("head", [layer, head]);
  const cell = row < 0 ? null : [row, col < 0 ? null : col];
  if (now.row !== row || (row >= 0 && now.col !== col)) model.set("cell", cell);
  model.save_changes();
}

/**
 * Passes messages on between the page and the kernel.
 * @param {MessagePort} port
 * @param {NotebookModel} model
 * @param {ReturnType<typeof openChannel>} channel
 */
function connect(port, model, channel) {
  port.onmessage = ({ data: message }) => {
    if (message.kind === "select") select(model, message.selection);
    if (message.kind === "stop") channel.stop(message.id);
    if (message.kind !== "ask" && message.kind !== "job") return;
    channel.ask(message, (answer, content) => {
      const moved = content ? { ...answer, id: message.id, content } : { ...answer, id: message.id };
      port.postMessage(moved, content ? [content] : []);
    });
  };
  channel.onPatience((isWaiting) => port.postMessage({ kind: "waiting", message: isWaiting ? BUSY : "" }));
  const tell = () => port.postMessage({ kind: "select", selection: selectionOf(model) });
  const names = ["change:head", "change:cell", "change:text", "change:view"];
  names.forEach((name) => model.on(name, tell));
  const leave = () => port.postMessage({ kind: "gone", message: GONE });
  // What Jupyter's widgets say when the kernel is gone: their comm is closed, or no longer alive.
  const ends = ["comm:close", "comm_live_update", "destroy"];
  ends.forEach((name) => model.on(name, leave));
  tell();
  return () => {
    names.forEach((name) => model.off(name, tell));
    ends.forEach((name) => model.off(name, leave));
    port.close();
  };
}

/**
 * Whether the notebook is dark around a cell: the first ground behind it that hides what is below.
 * @param {HTMLElement} cell
 */
function isDark(cell) {
  // A canvas understands every way to write a colour.
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  for (let node = /** @type {HTMLElement | null} */ (cell); canvas && node; node = node.parentElement) {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = getComputedStyle(node).backgroundColor;
    canvas.fillRect(0, 0, 1, 1);
    const [red, green, blue, alpha] = canvas.getImageData(0, 0, 1, 1).data;
    if (alpha > 128) return 0.3 * red + 0.59 * green + 0.11 * blue < 128;
  }
  return matchMedia("(prefers-color-scheme: dark)").matches;
}

/**
 * Tells the page whether the notebook around it is light or dark, now and whenever that may have changed.
 * @param {MessagePort} port
 * @param {HTMLElement} cell
 */
function tellTheme(port, cell) {
  const tell = () => port.postMessage({ kind: "theme", theme: isDark(cell) ? "dark" : "light" });
  const observer = new MutationObserver(tell);
  for (const node of [document.documentElement, document.body]) observer.observe(node, { attributes: true });
  tell();
  return () => observer.disconnect();
}

/**
 * Stands the page up in the cell.
 * @param {{ model: NotebookModel, el: HTMLElement }} view
 */
async function render({ model, el }) {
  const channel = openChannel(model);
  const note = document.createElement("p");
  note.textContent = "Opening…";
  channel.onPatience((isWaiting) => (note.textContent = isWaiting ? BUSY : "Opening…"));
  const frame = document.createElement("iframe");
  frame.title = "Attention of every head";
  // In the sandbox the page runs its own script, and saves and prints figures; it cannot reach the notebook.
  frame.setAttribute("sandbox", "allow-scripts allow-downloads allow-modals");
  frame.style.cssText = `width:100%;height:${Number(model.get("height"))}px;border:0;display:block`;
  el.append(note);
  const { port1, port2 } = new MessageChannel();
  const endings = [channel.close, () => frame.remove()];
  frame.addEventListener(
    "load",
    () => {
      note.remove();
      endings.unshift(tellTheme(port1, el), connect(port1, model, channel));
      frame.contentWindow?.postMessage("regard-port", "*", [port2]); // a sandboxed frame has no origin to name
    },
    { once: true },
  );
  pageCode(model.get("_page"), channel).then(
    (code) => {
      frame.srcdoc = code;
      el.append(frame);
    },
    (error) => (note.textContent = `The page could not be opened. ${error.message}`),
  );
  return () => endings.forEach((end) => end());
}

export default { render };
