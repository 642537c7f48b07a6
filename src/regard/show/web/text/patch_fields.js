// @ts-check
// Tokens that stand for patches of a picture, as fields over that picture in their place among the tokens.

import { contextOf, element } from "../parts/dom.js";
import { patchOf } from "../data/patch_layout.js";
import { drawings } from "../picture/canvas_drawings.js";

const SMALL = 128; // pixels to a side: smaller pictures show their own

/**
 * Moves the spans of patches into their pictures; gives the numbers of these tokens.
 * @param {HTMLElement[]} spans one for each token of the list that the layout describes
 * @param {string[]} names of the tokens
 * @param {PatchLayout} layout
 * @param {PicturesMeta["images"]} images
 */
export function arrangePatches(spans, names, layout, images) {
  /** @type {Set<number>} */
  const moved = new Set();
  for (const span of layout.spans) {
    const shown = pictureBox(span, images[span.picture] ?? null);
    spans[span.first]?.before(shown);
    for (let token = span.first; token < span.first + span.tokens; token++) {
      const [field, patch] = [spans[token], patchOf(layout, token)];
      if (!field || !patch) continue;
      field.textContent = "";
      field.classList.add("patch");
      field.title = names[token] ?? "";
      field.setAttribute("aria-label", field.title);
      field.style.gridArea = `${patch.row + 1} / ${patch.col + 1}`;
      shown.append(field);
      moved.add(token);
    }
  }
  return moved;
}

/**
 * A grid of a picture's patches over the picture, which is grey, so that colours mean attention.
 * @param {PatchSpan} span
 * @param {PictureMeta | null} picture null if it was not kept
 */
export function pictureBox({ rows, cols }, picture) {
  const shape = picture ? picture.width / picture.height : cols / rows;
  const grid = { role: "presentation", "--rows": rows, "--cols": cols, "--shape": shape };
  return element("span.patch-picture", grid, picture && greyGround(picture));
}

/** @param {PictureMeta} picture */
function greyGround({ src, width, height }) {
  const small = Math.max(width, height) < SMALL;
  const canvas = element("canvas", { width, height, class: small ? "ground small" : "ground" });
  // A figure has the picture as one image, and not each pixel as a cell.
  drawings.set(canvas, (context, size) =>
    context.drawImage(canvas, 0, 0, width, height, 0, 0, size.width, size.height),
  );
  const image = new Image();
  image.addEventListener("load", () => {
    const context = contextOf(canvas);
    context.drawImage(image, 0, 0, width, height);
    const pixels = context.getImageData(0, 0, width, height);
    const { data } = pixels;
    for (let i = 0; i < data.length; i += 4) {
      const light = 0.2126 * data[i] + 0.7152 * data[i + 1] + 0.0722 * data[i + 2]; // as light as it was
      data[i] = data[i + 1] = data[i + 2] = light;
    }
    context.putImageData(pixels, 0, 0);
  });
  image.src = src;
  return canvas;
}
