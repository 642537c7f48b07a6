// @ts-check
// What the views have in common: the element that they fill, the page, the state that they show, and what that names.

import { layerOf } from "./data/layers.js";

export class PageView {
  /** @param {ViewPlace} place */
  constructor(...[root, app]) {
    this.root = root;
    this.app = app;
    this.state = app.state;
  }

  /** All layers of the text. */
  get layers() {
    return this.app.meta.texts[this.state.text].layers;
  }

  /** The layer that the state names, as it was captured. */
  get captured() {
    return layerOf(this.app.meta, this.state.text, this.state.layer);
  }

  /** Called when another view takes the place of this one. */
  hide() {}
}
