// @ts-check
// One of several maps that move together: what is done to one, zooming, moving, pointing, is done to all.

import { ramp } from "../parts/colours.js";
import { mapScale } from "../parts/map_scale.js";
import { isSigned } from "../data/quantity.js";
import { theme } from "../parts/theme.js";
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
        const place = point && this.inPicture(...point);
        for (const peer of this.peers) {
          peer.hover = place;
          peer.plan();
        }
      },
    };
  }

  /**
   * The colours of maps that show the same end at the same number: the greatest that one of them needs.
   * @type {MapCanvas["look"]}
   */
  look(z, cover, sink) {
    const own = super.look(z, cover, sink);
    if (own.scale.top !== this.lastEnd) {
      this.lastEnd = own.scale.top;
      for (const peer of this.peers) if (peer !== this) peer.plan();
    }
    const alike = this.peers.filter((peer) => isSigned(peer.quantity) === isSigned(this.quantity));
    const top = Math.max(own.scale.top, ...alike.map((peer) => peer.lastEnd));
    const scale = mapScale(this.state.scale, top, this.layer.cols, this.quantity);
    const style = [theme(), own.reduce, scale.scale, scale.top, scale.bottom, scale.signed].join(" ");
    return { ...own, scale, style, pixels: ramp(theme(), scale.signed).pixels };
  }
}
