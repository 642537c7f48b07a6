// @ts-check
// The views that the page has, in the order of their tabs. A view is a function (root, app) that fills its
// root and returns {show(state), hide()}; `needs` says of the meta whether the view has something to show.

import { cache } from "./cache/cache.js";
import { heads } from "./heads/heads.js";
import { map } from "./map/map.js";
import { steps } from "./steps/steps.js";
import { text } from "./text/text.js";
import { time } from "./time/time.js";

/**
 * @type {{
 *   name: string,
 *   title: string,
 *   make(root: HTMLElement, app: App): View,
 *   needs?(meta: Meta): boolean,
 * }[]}
 */
export const VIEWS = [
  { name: "map", title: "Map", make: map },
  { name: "text", title: "Text", make: text },
  { name: "heads", title: "Heads", make: heads },
  { name: "steps", title: "Steps", make: steps },
  { name: "cache", title: "Cache", make: cache },
  { name: "time", title: "Time", make: time, needs: (meta) => Boolean(meta.time) },
];
