// @ts-check
// Pictures as what a reader keeps: pixels, and a sheet that the browser prints, to a PDF file or on paper.

import { contextOf, element } from "../parts/dom.js";

const SHARP = 3; // pixels of a PNG for one of the page
const MOST = 16000; // pixels to a side that browsers can draw on

/**
 * @param {Picture} picture
 * @returns {Promise<Blob>}
 */
export async function writePng({ svg, width, height }) {
  const image = new Image();
  image.src = `data:image/svg+xml,${encodeURIComponent(svg)}`;
  await image.decode();
  const sharp = Math.min(SHARP, MOST / Math.max(width, height));
  const canvas = element("canvas", { width: Math.ceil(width * sharp), height: Math.ceil(height * sharp) });
  contextOf(canvas).drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((done, failed) => {
    /** @param {Blob | null} blob */
    const finish = (blob) => (blob ? done(blob) : failed(new Error("the picture is too large")));
    canvas.toBlob(finish, "image/png");
  });
}

/**
 * Opens the browser's print dialog with the picture alone, on a sheet of its size.
 * @param {Picture} picture
 * @param {string} name which the dialog proposes for the file
 */
export function printPicture({ svg, width, height }, name) {
  dispatchEvent(new Event("afterprint")); // a browser that shows no dialog never said so of the last picture
  const drawing = new DOMParser().parseFromString(svg, "image/svg+xml").documentElement;
  const sheet = element("div.print-sheet");
  sheet.append(document.importNode(drawing, true));
  // A style sheet of the script's own: the page's security policy allows no inline styles.
  const pageSize = new CSSStyleSheet();
  pageSize.replaceSync(`@page { size: ${width}px ${height}px; margin: 0; }`);
  const [before, sheets] = [document.title, document.adoptedStyleSheets];
  document.body.append(sheet);
  document.title = name;
  document.adoptedStyleSheets = [...sheets, pageSize];
  const restore = () => {
    sheet.remove();
    document.title = before;
    document.adoptedStyleSheets = sheets;
  };
  addEventListener("afterprint", restore, { once: true });
  print();
}
