// The views that the page has, in the order of their tabs. A view is a function (root, app) that fills its
// root and returns {show(state), hide()}; `needs` says of the meta whether the view has something to show.

import { cache } from "./cache.js";
import { heads } from "./heads.js";
import { map } from "./map.js";
import { steps } from "./steps.js";
import { text } from "./text.js";
import { time } from "./time.js";

export const VIEWS = [
  { name: "map", title: "Map", make: map },
  { name: "text", title: "Text", make: text },
  { name: "heads", title: "Heads", make: heads },
  { name: "steps", title: "Steps", make: steps },
  { name: "cache", title: "Cache", make: cache },
  { name: "time", title: "Time", make: time, needs: (meta) => Boolean(meta.time) },
];
