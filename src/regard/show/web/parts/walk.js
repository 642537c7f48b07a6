// @ts-check
// Five things to see, one after another: the view of each, and a line that says what to look for. It knows tabs.

import { element, makeButton } from "./dom.js";

/** What to see, by the name of a view. */
const THINGS = Object.entries({
  text: "Point at a token: an arc leads to the tokens that it attends to, and below stands what the model expects next.",
  map: "The same head as a map, queries down and keys across. Short diagonals are phrases that occurred before.",
  heads:
    "One score of every head. A dark cell at induction is a head that looks up what came after earlier copies.",
  steps: "The numbers behind one row: scores, mask, softmax, values. They add up.",
  cache: "How small a cache may get: the keys that each head needs, and what its policies keep of it.",
  compare: "Two heads side by side, and where one of them attends more than the other.", // where no cache was measured
});
const MOST = 5;

/** @type {HTMLElement | null} */
let line = null;

/** Begins with the first thing; those whose view the page does not have give way to the next. */
export function walk() {
  const known = THINGS.flatMap(([name, say]) => {
    const tab = document.getElementById(`tab-${name}`);
    return tab && !tab.hidden ? [{ tab, say }] : [];
  });
  const tabs = known.slice(0, MOST);
  const go = (/** @type {number} */ n) => {
    line?.remove();
    if (n >= tabs.length) return;
    const { tab, say } = tabs[n];
    tab.click();
    const last = n + 1 === tabs.length;
    const next = makeButton(last ? "Done" : "Next", () => go(n + 1), { class: "button strong" });
    const words = element("p", `${n + 1} of ${tabs.length}. ${say}`);
    const leave = last ? [] : [makeButton("Leave", () => line?.remove(), { class: "plain" })];
    line = element("aside.walk", { "aria-label": "Things to see" }, words, ...leave, next);
    document.body.append(line);
    next.focus();
  };
  go(0);
}
