// @ts-check
// Where the worker of a page that holds a model begins.

import { Responder } from "../source/arithmetic/responder.js";
import { LiveWeights } from "./live_weights.js";

new Responder(/** @type {Port} */ (/** @type {unknown} */ (self)), LiveWeights);
