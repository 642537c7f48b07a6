// @ts-check
// The selection of a page in a notebook, in step with the widget's in Python, and what the page says of the kernel.

import { element } from "../parts/dom.js";
import { setSurroundings } from "../parts/theme.js";

/**
 * What the widget knows of the state.
 * @param {State} state
 * @returns {NotebookSelection}
 */
export function selectionOf({ view, text, layer, head, row, col }) {
  return { view, text, layer, head, row, col };
}

/**
 * Whether two selections are the same.
 * @param {NotebookSelection} a
 * @param {NotebookSelection} b
 */
export function areSame(a, b) {
  const names = /** @type {(keyof NotebookSelection)[]} */ (Object.keys(a));
  return names.every((name) => a[name] === b[name]);
}

/**
 * Keeps the page and the widget of a notebook in step.
 * @param {App} app
 * @param {import("./kernel.js").Kernel} kernel
 */
export function followNotebook(app, kernel) {
  let told = selectionOf(app.state);
  const banner = element("p.kernel-gone", { role: "alert" });
  kernel.listen((message) => {
    if (message.kind === "select") {
      app.set(message.selection);
      told = selectionOf(app.state); // what does not exist was replaced, which the widget is told below
      if (!areSame(told, message.selection)) kernel.send({ kind: "select", selection: told });
    }
    if (message.kind === "theme") setSurroundings(message.theme);
    if (message.kind === "waiting") app.status(message.message, 3600);
    if (message.kind === "gone") {
      banner.textContent = message.message;
      document.body.prepend(banner);
    }
  });
  app.on((state) => {
    const selection = selectionOf(state);
    if (areSame(selection, told)) return;
    told = selection;
    kernel.send({ kind: "select", selection });
  });
}
