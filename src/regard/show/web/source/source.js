// @ts-check
// Where the page's numbers come from: a server, a notebook's kernel, or the file itself. All answer the same questions.
// `Source` in `types.d.ts` lists them. Layers are named by their key, heads by their number in the model, and all
// answers but `meta` are promises.

import { applySettings } from "../data/settings.js";
import { openKernel } from "../notebook/kernel.js";
import { followNotebook } from "../notebook/selection.js";
import { openSaved } from "./saved.js";
import { openServed } from "./served.js";

/**
 * The file's own data if it carries some, else the kernel of the notebook. A server's page has `over_http.js`.
 * @returns {Promise<Source>}
 */
export async function open() {
  const source = await (document.getElementById("regard-data") ? openSaved() : openInNotebook());
  applySettings(source.meta);
  return source;
}

/** @returns {Promise<Source>} */
async function openInNotebook() {
  const kernel = await openKernel();
  const source = await openServed(kernel);
  return Object.assign(source, { attach: (/** @type {App} */ app) => followNotebook(app, kernel) });
}
