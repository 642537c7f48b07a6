// @ts-check
// Light or dark: as the reader's system says, or the notebook around the page, until the reader says otherwise.

import { element } from "./dom.js";

/** @typedef {ThemeName | "system"} ThemeChoice */

const CHOICES = /** @type {ThemeChoice[]} */ (["system", "light", "dark"]);
const SIGNS = { system: "◐", light: "☀", dark: "☾" };
const NAMES = { system: "Auto", light: "Light", dark: "Dark" };

/** @type {ThemeName | undefined} */
let surroundings; // the theme of the notebook around the page

/** @param {ThemeName} name the theme of what is around the page, which "system" stands for from then on */
export function setSurroundings(name) {
  if (name === surroundings) return;
  surroundings = name;
  dispatchEvent(new Event("regard-surroundings"));
}

const prefersDark = () => matchMedia("(prefers-color-scheme: dark)");

/** "light" or "dark", whatever it follows from. */
export function theme() {
  // Forced colours are the system's, whatever was chosen here.
  const forced = matchMedia("(forced-colors: active)").matches;
  const chosen = forced ? undefined : document.documentElement.dataset.theme;
  return /** @type {ThemeName | undefined} */ (chosen) ?? (prefersDark().matches ? "dark" : "light");
}

/**
 * Makes the switch. A change is announced as the event "regard-theme" on the window.
 * @param {HTMLButtonElement} button
 */
export function makeTheme(button) {
  let chosen = remembered();
  const apply = () => {
    const name = chosen === "system" ? surroundings : chosen;
    if (name) document.documentElement.dataset.theme = name;
    else delete document.documentElement.dataset.theme;
    const sign = element("span.theme-sign", { "aria-hidden": "true" }, SIGNS[chosen]);
    button.replaceChildren(sign, element("span.theme-name", ` ${NAMES[chosen]}`));
    const follows = chosen === "system" ? `, which is ${theme()} now` : "";
    button.title = `Theme: ${chosen}${follows}. Click for ${next(chosen)}.`;
    button.setAttribute("aria-label", `Theme: ${chosen}`);
    dispatchEvent(new Event("regard-theme"));
  };
  button.addEventListener("click", () => {
    chosen = next(chosen);
    try {
      localStorage.setItem("regard-theme", chosen);
    } catch {
      // A page opened from disk may have nowhere to remember it.
    }
    apply();
  });
  prefersDark().addEventListener("change", apply);
  addEventListener("regard-surroundings", apply);
  apply();
}

/**
 * The choice after this one.
 * @param {ThemeChoice} chosen
 */
function next(chosen) {
  return CHOICES[(CHOICES.indexOf(chosen) + 1) % CHOICES.length];
}

function remembered() {
  try {
    const chosen = localStorage.getItem("regard-theme");
    return CHOICES.find((choice) => choice === chosen) ?? "system";
  } catch {
    return "system";
  }
}
