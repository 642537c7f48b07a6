// @ts-check
// The reader's hand on the map: mouse, wheel, touch and keys become a few plain wishes.
// It knows events; what a wish does is the map's business.

import { onKeys } from "../parts/dom.js";

const TAP = 4; // pixels that a finger may move in a tap

/**
 * @typedef {object} Wishes what a reader's hand asks for; points are pixels from the canvas's upper left
 * @property {(by: Point) => void} pan
 * @property {(factor: number, point: Point) => void} zoom
 * @property {(point: Point | null) => void} hover
 * @property {(point: Point) => void} tap
 * @property {(point: Point) => void} double
 * @property {(name: string, shift: boolean) => boolean} key says whether it took the key
 */

/**
 * Listens on a canvas.
 * @param {HTMLCanvasElement} canvas
 * @param {Wishes} wishes
 */
export function listen(canvas, wishes) {
  /** @type {Map<number, Point>} */
  const fingers = new Map();
  let moved = 0;
  /**
   * @param {MouseEvent} event
   * @returns {Point}
   */
  const point = (event) => {
    const box = canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };

  canvas.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    canvas.setPointerCapture(event.pointerId);
    fingers.set(event.pointerId, point(event));
    if (fingers.size === 1) moved = 0;
  });
  canvas.addEventListener("pointermove", (event) => {
    const [x, y] = point(event);
    const before = fingers.get(event.pointerId);
    if (!before) {
      if (event.pointerType === "mouse") wishes.hover([x, y]);
      return;
    }
    const [dx, dy] = [x - before[0], y - before[1]];
    moved += Math.hypot(dx, dy);
    if (moved > TAP) canvas.classList.add("dragging");
    if (fingers.size === 2) pinch(fingers, event.pointerId, [x, y], wishes);
    else if (moved > TAP) wishes.pan([dx, dy]);
    else return; // the start of a drag counts once it is one
    fingers.set(event.pointerId, [x, y]);
  });
  const leave = (/** @type {PointerEvent} */ event) => {
    if (!fingers.delete(event.pointerId)) return;
    if (fingers.size === 0) canvas.classList.remove("dragging");
    if (event.type === "pointerup" && moved <= TAP && fingers.size === 0) wishes.tap(point(event));
  };
  canvas.addEventListener("pointerup", leave);
  canvas.addEventListener("pointercancel", leave);
  canvas.addEventListener("pointerleave", () => wishes.hover(null));
  canvas.addEventListener("dblclick", (event) => wishes.double(point(event)));
  canvas.addEventListener(
    "wheel",
    (event) => {
      event.preventDefault();
      const unit = event.deltaMode === 1 ? 24 : event.deltaMode === 2 ? 400 : 1;
      const speed = event.ctrlKey ? 0.01 : 0.0022; // a pinch on a touchpad comes as a wheel with Ctrl
      wishes.zoom(Math.exp(-Math.max(-240, Math.min(240, event.deltaY * unit)) * speed), point(event));
    },
    { passive: false },
  );
  onKeys(canvas, wishes.key);
}

/**
 * Two fingers: what was between them stays between them.
 * @param {Map<number, Point>} fingers
 * @param {number} moving
 * @param {Point} now
 * @param {Wishes} wishes
 */
function pinch(fingers, moving, now, wishes) {
  const [other] = [...fingers].filter(([id]) => id !== moving).map(([, place]) => place);
  const before = fingers.get(moving) ?? now;
  const distance = (/** @type {Point} */ a, /** @type {Point} */ b) =>
    Math.max(8, Math.hypot(a[0] - b[0], a[1] - b[1]));
  /** @type {Point} */
  const middle = [(now[0] + other[0]) / 2, (now[1] + other[1]) / 2];
  wishes.pan([(now[0] - before[0]) / 2, (now[1] - before[1]) / 2]);
  wishes.zoom(distance(now, other) / distance(before, other), middle);
}
