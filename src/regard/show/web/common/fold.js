// @ts-check
// Controls that fold away where there is little room: always there in a large window, behind a button in a small one.

import { element } from "./dom.js";

const SMALL = "(max-width: 720px), (max-height: 760px)"; // as in controls.css
let made = 0;

/**
 * The button that opens controls, which only a small window shows, and the controls.
 * @param {string} title of the button
 * @param {HTMLElement[]} parts
 */
export function fold(title, ...parts) {
  const id = `fold-${++made}`;
  const box = element("div", { class: "fold", id }, ...parts);
  const button = element("button", { class: "button fold-button", type: "button", text: title });
  button.setAttribute("aria-controls", id);
  /** @param {boolean} open */
  const unfold = (open) => {
    box.hidden = !open;
    button.setAttribute("aria-expanded", String(open));
  };
  const small = matchMedia(SMALL);
  const follow = () => unfold(!small.matches);
  button.addEventListener("click", () => unfold(box.hidden === true));
  small.addEventListener("change", follow);
  follow();
  return [button, box];
}
