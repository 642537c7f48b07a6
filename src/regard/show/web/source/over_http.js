// @ts-check
// The source of a served page. The server is there before the model has read anything: until then it tells how far
// it is, and the page's first question waits.

import { applySettings } from "../data/settings.js";
import { early } from "./early_meta.js";
import { openServed } from "./served.js";

const PATIENCE = 250; // milliseconds after which a reader wants to know what the server is doing

/**
 * @param {(progress: OpeningProgress) => void} onProgress what the server does before it has something to show
 * @returns {Promise<Source>}
 */
export async function openOverHttp(onProgress) {
  const { transport } = early;
  const stop = new AbortController();
  const cancel = () => transport.follow("cancel", {}, () => {});
  const timer = setTimeout(() => {
    const tell = (/** @type {CaptureLine} */ { progress }) => progress && onProgress({ ...progress, cancel });
    transport.follow("opening", {}, tell, stop.signal).catch(() => {}); // the first question hears of it, too
  }, PATIENCE);
  try {
    const source = await openServed(transport, early.meta);
    applySettings(source.meta);
    return source;
  } finally {
    clearTimeout(timer);
    stop.abort();
  }
}
