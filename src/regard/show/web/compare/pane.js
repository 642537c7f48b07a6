// @ts-check
// One of several maps that move together: what is done to one, zooming, moving, pointing, is done to all.

import { isSigned } from "../data/quantity.js";
import { MapCanvas } from "../map/canvas.js";

/** A map whose view is that of its peers. */
export class LinkedMap extends MapCanvas {
  /** @param {ConstructorParameters<typeof MapCanvas>} map */
  constructor(...map) {
    super(...map);
    /** @type {LinkedMap[]} */
    this.peers = []; // all maps that move together, with this one
    this.lastEnd = 0; // of its own colours
    this.canvas.removeAttribute("aria-labelledby");
    this.canvas.removeAttribute("aria-describedby");
    this.canvas.setAttribute("aria-label", "Map");
  }

  /** After a movement of this map: the others follow at once. */
  moved() {
    super.moved();
    const { x, y, zoom } = this.camera;
    for (const peer of this.peers) {
      if (peer === this) continue;
      Object.assign(peer.camera, { x, y, zoom });
      peer.whole = this.whole;
      peer.plan();
    }
  }

  /** Points at the same cell in all. */
  wishes() {
    const own = super.wishes();
    return {
      ...own,
      /** @param {Point | null} point */
      hover: (point) => {
        const place = point && this.inPicture(point);
        for (const peer of this.peers) {
          peer.hover = place;
          peer.plan();
        }
      },
    };
  }

  /**
   * The colours of maps that show the same end at the same number: the greatest that one of them needs.
   * @param {number} own
   */
  colourEnd(own) {
    if (own !== this.lastEnd) {
      this.lastEnd = own;
      for (const peer of this.peers) if (peer !== this) peer.plan();
    }
    const alike = this.peers.filter((peer) => isSigned(peer.quantity) === isSigned(this.quantity));
    return Math.max(own, ...alike.map((peer) => peer.lastEnd));
  }
}
