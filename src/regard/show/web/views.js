// @ts-check
// The views that the page has, in the order of their tabs. A view is a class that fills its root and has
// show(state) and hide(); `needs` says of the meta whether the view has something to show.

import { CacheView } from "./cache/cache.js";
import { CompareView } from "./compare/compare.js";
import { isPictureAlone } from "./data/patch_layout.js";
import { HeadsView } from "./heads/heads.js";
import { MapView } from "./map/map.js";
import { StepsView } from "./steps/steps.js";
import { SurveyView } from "./survey/survey.js";
import { TextView } from "./text/text.js";
import { TimeView } from "./time/time.js";
import { WriteView } from "./write/write.js";

/** @param {Meta} meta */
const hasText = (meta) => meta.texts.some((text) => !text.removed && !isPictureAlone(text));

/** @typedef {new (root: HTMLElement, app: App) => View} ViewClass */

/**
 * Whether there are two heads to compare.
 * @param {Meta} meta
 */
function hasTwoHeads({ texts }) {
  return texts.length > 1 || texts[0].layers.reduce((sum, { heads }) => sum + heads.length, 0) > 1;
}

/** @typedef {{ name: string, title: string, View: ViewClass, needs?(meta: Meta): boolean }} ViewEntry */

/** @type {ViewEntry[]} */
const VIEWS = [
  { name: "text", title: "Text", View: TextView, needs: hasText },
  { name: "map", title: "Map", View: MapView },
  // The tokens of a vision model alone are patches of its picture.
  { name: "image", title: "Image", View: TextView, needs: (meta) => !hasText(meta) },
  { name: "heads", title: "Heads", View: HeadsView },
  { name: "compare", title: "Compare", View: CompareView, needs: hasTwoHeads },
  { name: "steps", title: "Steps", View: StepsView },
  {
    name: "write",
    title: "Write",
    View: WriteView,
    needs: ({ can, generation }) => can.generate || Boolean(generation),
  },
  { name: "cache", title: "Cache", View: CacheView, needs: (meta) => meta.can.retained && hasText(meta) },
  { name: "survey", title: "Survey", View: SurveyView, needs: (meta) => Boolean(meta.survey) },
  { name: "time", title: "Time", View: TimeView, needs: (meta) => Boolean(meta.time) },
];

/**
 * The views that have something to show.
 * @param {Meta} meta
 */
export function offeredViews(meta) {
  return VIEWS.filter(({ needs }) => !needs || needs(meta));
}
