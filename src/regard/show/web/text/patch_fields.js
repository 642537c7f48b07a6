// @ts-check
// Tokens of a text that stand for patches of a picture, as fields of that picture in their place in the text.

import { element } from "../parts/dom.js";
import { patchOf } from "../data/patch_layout.js";

/**
 * Moves the spans of patches into their pictures; gives the numbers of these tokens.
 * @param {HTMLElement[]} spans one for each token of the list that the layout describes
 * @param {string[]} names of the tokens
 * @param {PatchLayout} layout
 * @param {PicturesMeta["images"]} images
 * @returns {Set<number>}
 */
export function arrangePatches(spans, names, layout, images) {
  /** @type {Set<number>} */
  const moved = new Set();
  layout.spans.forEach(({ picture, first, tokens, rows, cols }) => {
    const image = images[picture];
    const shown = element("span", { class: "patch-picture", role: "presentation" });
    shown.style.setProperty("--rows", String(rows));
    shown.style.setProperty("--cols", String(cols));
    shown.style.setProperty("--shape", String(image ? image.width / image.height : cols / rows));
    shown.classList.toggle("small", Boolean(image) && Math.max(image?.width ?? 0, image?.height ?? 0) < 128);
    if (image) shown.style.backgroundImage = `url("${image.src}")`;
    spans[first]?.before(shown);
    for (let token = first; token < first + tokens; token++) {
      const [span, patch] = [spans[token], patchOf(layout, token)];
      if (!span || !patch) continue;
      span.textContent = "";
      span.classList.add("patch");
      span.title = names[token] ?? "";
      span.setAttribute("aria-label", span.title);
      span.style.gridArea = `${patch.row + 1} / ${patch.col + 1}`;
      shown.append(span);
      moved.add(token);
    }
  });
  return moved;
}
