// @ts-check
// A menu that saves what a view shows: the picture as SVG or PNG, printed to PDF, and its numbers.

import { element, foldAway } from "../parts/dom.js";
import { writeCsv } from "./numbers.js";
import { printPicture, writePng } from "./output.js";

/**
 * A button with a menu.
 * @param {App} app
 * @param {Exported} exported
 */
export function exportMenu(app, exported) {
  const summary = element("summary.button", { title: "Save the picture or its numbers" }, "Export");
  const list = element("div.menu-list", { role: "menu" });
  const menu = element("details.menu.export", summary, list);
  const offer = (
    /** @type {string} */ kind,
    /** @type {string} */ about,
    /** @type {() => Promise<void>} */ act,
  ) => {
    const button = element("button.plain", { type: "button", role: "menuitem" }, kind, " ");
    button.append(element("span.quiet", about));
    button.addEventListener("click", async () => {
      menu.open = false;
      try {
        await act();
      } catch (error) {
        app.status(`${kind}: the export failed, ${error.message}`);
      }
    });
    list.append(button);
  };
  const offerFile = (
    /** @type {string} */ kind,
    /** @type {string} */ about,
    /** @type {() => Promise<Blob>} */ make,
  ) => offer(kind, about, async () => download(await make(), `${exported.name()}.${kind.toLowerCase()}`));
  const print = async () => printPicture(await exported.picture(), exported.name());
  const svg = async () => new Blob([(await exported.picture()).svg], { type: "image/svg+xml" });
  offer("Print to PDF", "vectors and text", print);
  offerFile("SVG", "vectors and text", svg);
  offerFile("PNG", "pixels", async () => writePng(await exported.picture()));
  const { table } = exported;
  if (table) offerFile("CSV", "numbers in view", async () => writeCsv(await table()));
  foldAway(menu);
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
