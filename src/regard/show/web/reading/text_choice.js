// @ts-check
// Which text is shown: the choice in the header, and how another one is opened.

import { textsName } from "../data/layers.js";
import { WHOLE } from "../data/settings.js";
import { element } from "../parts/dom.js";

/** What no longer means anything on another text. */
const ANEW = { row: -1, col: -1, token: -1, ...WHOLE };

/** Says that the page's texts have changed. */
export function textsChanged() {
  dispatchEvent(new Event("regard-texts"));
}

/**
 * Shows another text, from its beginning.
 * @param {App} app
 * @param {number} text
 * @param {Partial<State>} [also]
 */
export function openText(app, text, also = {}) {
  textsChanged();
  app.set({ text, ...ANEW, ...also });
}

/**
 * Fills the choice among the page's texts, and keeps it so.
 * @param {App} app
 * @param {HTMLSelectElement} select
 * @param {HTMLElement} whole the choice with its label
 */
export function makeTextChoice(app, select, whole) {
  const fill = () => {
    const titles = app.runs.titles();
    select.replaceChildren(
      ...titles.map(({ number, title }) => element("option", { value: String(number) }, title)),
    );
    whole.hidden = titles.length < 2;
    const name = textsName(app.meta);
    select.setAttribute("aria-label", name);
    const label = whole.querySelector("span");
    if (label) label.textContent = name;
    show();
  };
  const show = () => {
    select.value = String(app.state.text);
    select.title = select.selectedOptions[0]?.textContent ?? "";
  };
  select.addEventListener("change", () => {
    const text = Number(select.value);
    const original = app.meta.texts[text].edited?.text ?? text;
    app.set(original === app.runs.original ? { text } : { text, ...ANEW }); // the same tokens stay in view
  });
  fill();
  return { fill, show };
}
