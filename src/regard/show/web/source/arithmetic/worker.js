// @ts-check
// Where the worker of a saved page begins: it answers what the page asks.

import { Responder } from "./responder.js";
import { SavedWeights } from "./saved_weights.js";

new Responder(/** @type {Port} */ (/** @type {unknown} */ (self)), SavedWeights);
