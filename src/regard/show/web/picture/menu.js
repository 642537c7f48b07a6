// @ts-check
// A menu that saves what a view shows: the picture as PDF, SVG or PNG, and its numbers.

import { element } from "../common/dom.js";
import { drawGlyph, encodeImage, writePng } from "./bitmap.js";
import { writePdf } from "./pdf.js";
import { writeSvg } from "./svg.js";

/** @type {Record<string, [string, (picture: Picture) => Promise<Blob>]>} */
const PICTURES = {
  PDF: [
    "vectors and text",
    async (picture) => new Blob([await writePdf(picture, drawGlyph)], { type: "application/pdf" }),
  ],
  SVG: [
    "vectors and text",
    async (picture) => new Blob([writeSvg(picture, encodeImage)], { type: "image/svg+xml" }),
  ],
  PNG: ["pixels", writePng],
};

/**
 * A button with a menu.
 * @param {App} app
 * @param {Exported} exported
 */
export function exportMenu(app, exported) {
  const summary = element("summary", {
    class: "button",
    text: "Export",
    title: "Save the picture or its numbers",
  });
  const list = element("div", { class: "menu-list", role: "menu" });
  const menu = element("details", { class: "menu export" }, summary, list);
  /**
   * @param {string} kind
   * @param {string} about
   * @param {() => Promise<Blob>} make
   */
  const offer = (kind, about, make) => {
    const button = element("button", { type: "button", role: "menuitem", class: "plain" }, kind, " ");
    button.append(element("span", { class: "quiet", text: about }));
    button.addEventListener("click", async () => {
      menu.open = false;
      try {
        download(await make(), `${exported.name()}.${kind.toLowerCase()}`);
      } catch (error) {
        app.status(`The ${kind} could not be exported: ${error.message}`);
      }
    });
    list.append(button);
  };
  for (const [kind, [about, write]] of Object.entries(PICTURES))
    offer(kind, about, async () => write(await exported.picture()));
  for (const [kind, make] of Object.entries(exported.numbers ?? {})) offer(kind, "numbers in view", make);
  menu.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    menu.open = false;
    summary.focus();
  });
  addEventListener("pointerdown", (event) => {
    if (!(event.target instanceof Node && menu.contains(event.target))) menu.open = false;
  });
  return menu;
}

/**
 * @param {Blob} blob
 * @param {string} name
 */
function download(blob, name) {
  const link = element("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}
