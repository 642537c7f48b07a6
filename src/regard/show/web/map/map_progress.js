// @ts-check
// How much of the large map is there, over it while its tiles are being computed, with a button to cancel that.

import { LateProgress } from "../parts/progress_panel.js";

export class MapProgress {
  /**
   * @param {HTMLElement} root
   * @param {import("./tiles.js").TilePyramid} pyramid
   * @param {() => void} redraw
   */
  constructor(root, pyramid, redraw) {
    this.pyramid = pyramid;
    this.redraw = redraw;
    this.panel = new LateProgress("over-map");
    this.shown = ""; // what it says: a drawing of every frame asks
    root.append(this.panel.box);
  }

  /**
   * Follows what a drawing is covered with.
   * @param {{ missing: number, needed: number }} cover
   */
  follow({ missing, needed }) {
    const { panel, pyramid } = this;
    const shown = `${pyramid.name} ${pyramid.stopped} ${missing} ${needed}`;
    if (shown === this.shown) return;
    this.shown = shown;
    if (!missing) panel.hide();
    else if (pyramid.stopped)
      panel.offer(`Stopped: ${missing} of ${needed} parts of this map are missing.`, () => this.go(true));
    else {
      const progress = { done: needed - missing, of: needed, unit: "parts", cancel: () => this.go(false) };
      panel.follow("Computing this head", progress);
    }
  }

  /** @param {boolean} on */
  go(on) {
    this.pyramid.stopped = !on;
    this.panel.hide();
    this.shown = "";
    this.redraw();
  }
}
