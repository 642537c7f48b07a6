// @ts-check
// Where the colours of the large map end: at 1, or at what fits what is seen.

import { makeScale } from "../common/colours.js";
import { isSigned, PLAIN } from "../common/quantity.js";

const NEAR = 1.3; // the colours hold still while the best end is within this factor

/** The end of a scale that fits what is seen, and holds still while it about fits. */
export class ColourFit {
  constructor() {
    this.name = ""; // what it was fitted to
    this.top = 1;
    this.sure = false; // whether all of it was there
    this.asked = true; // whether to look again
  }

  /** Looks again, because more of the map came or another part of it is seen. */
  refresh() {
    this.asked = true;
  }

  /**
   * Fits the end to what is seen, if that is due.
   * @param {string} name of the head, the level and what cells show
   * @param {{ drawn: DrawnTile[], complete: boolean }} cover
   * @param {() => number} best computes the best end
   */
  update(name, { drawn, complete }, best) {
    const due = name !== this.name || (this.asked && complete);
    if (!due || !drawn.some((one) => one.tile)) return;
    const top = best();
    const near = this.name === name && this.sure && top < this.top * NEAR && top > this.top / NEAR;
    if (!near) this.top = top;
    Object.assign(this, { name, asked: false, sure: complete });
  }
}

/**
 * The scale of a map of `cols` keys whose colours end at `top`: a log scale begins below uniform attention, and that
 * of contributions at a thousandth of its end.
 * @param {string} scale "linear" or "log"
 * @param {number} top
 * @param {number} cols
 * @param {Quantity} [quantity]
 */
export function mapScale(scale, top, cols, quantity = PLAIN) {
  const floor = 10 ** Math.floor(Math.log10(0.3 / cols));
  const bottom = quantity.shade === "weights" ? Math.min(floor, top / 10) : top / 1000;
  return makeScale({ scale, top, bottom, signed: isSigned(quantity) });
}
