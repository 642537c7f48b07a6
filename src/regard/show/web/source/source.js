// @ts-check
// Where the page's numbers come from: a server, or the file itself. Both answer the same questions.
//
//   atOnce                                 how many tiles to ask for at a time
//   meta                                   what there is (see contents.py), known at once
//   thumbs(text, layer)                    {pictures: Uint8Array (heads · 64 · 64), sinks: [{key, share}]}
//   tile(text, layer, head, z, i, j, {without, signal})
//                                          {mass, max: Float32Array, rows, cols}; max −1: unseen
//   row(text, layer, head, row)            Float32Array, a weight for each key; head or layer may be "mean"
//   column(text, layer, head, col)         Float32Array, a weight for each query
//   heads(text)                            [{layer, head, kv_head, label, scores: {name: {value, null, …}}}]
//   steps(text, layer, head, row)          the whole computation of one row
//   eviction(text, layer)                  what a cache that forgets would lose, for every head (eviction.py)
//   capture(text, onProgress), generate(options, onStep)   only where meta.can says so
//
// Layers are named by their key, heads by their number in the model. All but `meta` are promises.

import { openSaved } from "./saved.js";
import { openServed } from "./served.js";

/**
 * The file's own data if it carries some, else the server that the page came from.
 * @returns {Promise<Source>}
 */
export function open() {
  return document.getElementById("regard-data") ? openSaved() : openServed();
}
