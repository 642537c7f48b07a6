// Light or dark: as the reader's system says, until the reader says otherwise on the page.

const CHOICES = ["system", "light", "dark"];
const SIGNS = { system: "◐", light: "☀", dark: "☾" };

const dark = matchMedia("(prefers-color-scheme: dark)");

/** "light" or "dark", whatever it follows from. */
export function theme() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ?? (dark.matches ? "dark" : "light");
}

/** Makes the switch. Whoever draws colours hears of a change as "regard-theme" on the window. */
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
  dark.addEventListener("change", apply);
  apply();
}

function remembered() {
  try {
    const chosen = localStorage.getItem("regard-theme");
    return CHOICES.includes(chosen) ? chosen : "system";
  } catch {
    return "system";
  }
}
