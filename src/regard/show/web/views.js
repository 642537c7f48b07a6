// @ts-check
// The views that the page has, in the order of their tabs. A view is a class that fills its root and has
// show(state) and hide(); `needs` says of the meta whether the view has something to show.
// The code of all but those that a page opens on may come later: until then there is no `View`.

import { isPictureAlone } from "./data/patch_layout.js";
import { MapView } from "./map/map.js";
import { TextView } from "./text/text.js";

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

/** @typedef {{ name: string, title: string, View?: ViewClass, needs?(meta: Meta): boolean }} ViewEntry */

/** @type {ViewEntry[]} */
export const VIEWS = [
  { name: "text", title: "Text", View: TextView, needs: hasText },
  { name: "map", title: "Map", View: MapView },
  { name: "image", title: "Image", needs: (meta) => meta.texts.some((text) => text.pictures) },
  { name: "heads", title: "Heads" },
  { name: "compare", title: "Compare", needs: hasTwoHeads },
  { name: "steps", title: "Steps" },
  { name: "write", title: "Write", needs: ({ can, generation }) => can.generate || Boolean(generation) },
  { name: "cache", title: "Cache", needs: (meta) => meta.can.retained && hasText(meta) },
  { name: "survey", title: "Survey", needs: (meta) => Boolean(meta.survey) },
  { name: "time", title: "Time", needs: (meta) => Boolean(meta.time) },
];

/**
 * Adds the code of views by their names; the page hears of it by "regard-views".
 * @param {Record<string, ViewClass>} classes
 */
export function addViews(classes) {
  for (const view of VIEWS) view.View ??= classes[view.name];
  dispatchEvent(new Event("regard-views"));
}
