// @ts-check
// Which part of a map is seen: a middle (in keys and queries) and a zoom (pixels a token).
// It knows geometry; it does not know what is drawn.

const CLOSEST = 96; // pixels a cell

export class Camera {
  constructor() {
    this.T = 1; // queries, and
    this.S = 1; // keys, of the map
    this.width = 1; // pixels of the picture
    this.height = 1;
    this.x = 0.5; // the middle of the picture, in keys and
    this.y = 0.5; // queries
    this.zoom = 1; // pixels a token
  }

  /** The zoom at which the whole map is seen. */
  get whole() {
    return Math.min(this.width / this.S, this.height / this.T);
  }

  get closest() {
    return Math.max(CLOSEST, this.whole);
  }

  get isWhole() {
    return this.zoom <= this.whole * 1.0001;
  }

  /** The part of the map in the picture, in tokens; it may reach beyond the map. */
  get frame() {
    const [w, h] = [this.width / this.zoom / 2, this.height / this.zoom / 2];
    return { left: this.x - w, top: this.y - h, right: this.x + w, bottom: this.y + h };
  }

  fit() {
    Object.assign(this, { x: this.S / 2, y: this.T / 2, zoom: this.whole });
    this.settle();
  }

  /** Keeps the zoom in its bounds and the map in the picture. */
  settle() {
    this.zoom = Math.min(this.closest, Math.max(this.whole, this.zoom || 0));
    const [w, h] = [this.width / this.zoom / 2, this.height / this.zoom / 2];
    // A map smaller than the picture stands at its upper left.
    this.x = this.S <= 2 * w ? w : Math.min(this.S - w, Math.max(w, this.x));
    this.y = this.T <= 2 * h ? h : Math.min(this.T - h, Math.max(h, this.y));
  }

  /**
   * @param {number} dx
   * @param {number} dy
   */
  pan(dx, dy) {
    this.x -= dx / this.zoom;
    this.y -= dy / this.zoom;
    this.settle();
  }

  /**
   * Zooms so that what is under the point (pixels in the picture) stays there.
   * @param {number} factor
   * @param {number} px
   * @param {number} py
   */
  zoomAt(factor, px, py) {
    const [col, row] = this.at(px, py);
    this.zoom = Math.min(this.closest, Math.max(this.whole, this.zoom * factor));
    this.x = col - (px - this.width / 2) / this.zoom;
    this.y = row - (py - this.height / 2) / this.zoom;
    this.settle();
  }

  /**
   * Moves as little as needed to bring a cell into the picture.
   * @param {number} col
   * @param {number} row
   * @param {number} [size]
   */
  reveal(col, row, size = 1) {
    const { left, top, right, bottom } = this.frame;
    if (col < left) this.x -= left - col;
    else if (col + size > right) this.x += col + size - right;
    if (row < top) this.y -= top - row;
    else if (row + size > bottom) this.y += row + size - bottom;
    this.settle();
  }

  /**
   * The place [col, row] under a point, with fractions.
   * @param {number} px
   * @param {number} py
   * @returns {[number, number]}
   */
  at(px, py) {
    return [this.x + (px - this.width / 2) / this.zoom, this.y + (py - this.height / 2) / this.zoom];
  }

  /**
   * The point [px, py] of a place.
   * @param {number} col
   * @param {number} row
   * @returns {[number, number]}
   */
  point(col, row) {
    return [(col - this.x) * this.zoom + this.width / 2, (row - this.y) * this.zoom + this.height / 2];
  }
}
