// @ts-check
// The end of the large map's colours as tiles come and the map moves.

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
