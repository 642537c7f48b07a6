// @ts-check
// Light or dark: as the reader's system says, until the reader says otherwise on the page.

/** @typedef {ThemeName | "system"} ThemeChoice */

const CHOICES = /** @type {ThemeChoice[]} */ (["system", "light", "dark"]);
const SIGNS = { system: "◐", light: "☀", dark: "☾" };

const prefersDark = () => matchMedia("(prefers-color-scheme: dark)");

/**
 * "light" or "dark", whatever it follows from.
 * @returns {ThemeName}
 */
export function theme() {
  const chosen = document.documentElement.dataset.theme;
  return /** @type {ThemeName | undefined} */ (chosen) ?? (prefersDark().matches ? "dark" : "light");
}

/**
 * Makes the switch. A change is announced as the event "regard-theme" on the window.
 * @param {HTMLButtonElement} button
 */
export function makeTheme(button) {
  let chosen = remembered();
  const apply = () => {
    if (chosen === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = chosen;
    button.textContent = SIGNS[chosen];
    button.title = `Theme: ${chosen}`;
    button.setAttribute("aria-label", `Theme: ${chosen}`);
    dispatchEvent(new Event("regard-theme"));
  };
  button.addEventListener("click", () => {
    chosen = CHOICES[(CHOICES.indexOf(chosen) + 1) % CHOICES.length];
    try {
      localStorage.setItem("regard-theme", chosen);
    } catch {
      // A page opened from disk may have nowhere to remember it.
    }
    apply();
  });
  prefersDark().addEventListener("change", apply);
  apply();
}

/** @returns {ThemeChoice} */
function remembered() {
  try {
    const chosen = localStorage.getItem("regard-theme");
    return CHOICES.find((choice) => choice === chosen) ?? "system";
  } catch {
    return "system";
  }
}
