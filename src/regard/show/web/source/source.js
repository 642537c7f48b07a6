// @ts-check
// Where the page's numbers come from: a server, or the file itself. Both answer the same questions.
// `Source` in `types.d.ts` lists them. Layers are named by their key, heads by their number in the model, and all
// answers but `meta` are promises.

import { applySettings } from "../common/settings.js";
import { withDifferences } from "./differences.js";
import { openSaved } from "./saved.js";
import { openServed } from "./served.js";

/**
 * The file's own data if it carries some, else the server that the page came from.
 * @returns {Promise<Source>}
 */
export async function open() {
  const source = await (document.getElementById("regard-data") ? openSaved() : openServed());
  applySettings(source.meta);
  return withDifferences(source);
}
