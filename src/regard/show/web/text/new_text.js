// @ts-check
// Hands the model another text to read, where there is one; the page then shows it beside the others.

import { element } from "../common/dom.js";

/**
 * What is unfolded to write or paste a text.
 * @param {App} app
 */
export function newText(app) {
  const area = element("textarea", {
    class: "prompt",
    rows: 5,
    "aria-label": "A text to read",
    spellcheck: "false",
  });
  const go = element("button", { class: "button strong", type: "button", text: "Read it" });
  const said = element("p", { class: "note", role: "status" });
  const box = element(
    "details",
    { class: "reading" },
    element("summary", { text: "Read another text" }),
    area,
    go,
    said,
  );
  /** @type {AbortController | null} */
  let running = null; // what stops it

  async function read() {
    if (running) return running.abort();
    running = new AbortController();
    go.textContent = "Stop";
    said.textContent = "Starting the model…";
    try {
      const text = await app.source.capture(area.value, tell, running.signal);
      dispatchEvent(new Event("regard-texts"));
      said.textContent = "";
      box.open = false;
      app.set({ text, row: -1, col: -1, x: -1, y: -1, zoom: 0 });
    } catch (error) {
      said.textContent = error.name === "AbortError" ? "Stopped." : error.message;
    } finally {
      running = null;
      go.textContent = "Read it";
    }
  }

  /** @param {CaptureLine} line */
  function tell({ progress }) {
    if (progress) said.textContent = `${progress.doing}: layer ${progress.done} of ${progress.of}`;
  }

  go.addEventListener("click", read);
  area.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) read();
  });
  return box;
}
