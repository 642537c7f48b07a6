// @ts-check
// What the Compare view can save: its maps as one figure.

import { composeFigure } from "../picture/figure.js";
import { onPaper } from "../picture/paper.js";
import { headWords } from "../picture/words.js";
import { draw } from "../map/heatmap.js";
import { complete, paperScene } from "../map/figure.js";
import { hasHidden, isClipped, marksOf } from "../map/legend.js";

const GAP = 28; // pixels between maps
const NAMES = ["A", "B", "A − B"];

/**
 * The maps of a Compare view side by side.
 * @param {import("./compare.js").CompareView} view
 * @returns {Promise<Picture>}
 */
export async function compareFigure({ app, shown, pair }) {
  const maps = shown.flatMap(({ map }) => (map ? [map] : []));
  for (const map of maps) await complete(map);
  const words = await Promise.all(pair.map((place) => headWords(app, place)));
  return onPaper(() => {
    for (const map of maps) map.forgetColours();
    const scenes = maps.map((map) => paperScene(map.scene()));
    for (const map of maps) map.forgetColours();
    const [weights, difference] = [scenes[0].look.scale, scenes[2]?.look.scale];
    const end = difference ? ` The colours of A − B end at ±${difference.top}; orange means more in A.` : "";
    const figure = {
      heading: words.map(({ heading }, n) => `${NAMES[n]}: ${heading}`).join("; "),
      lines: words.flatMap(({ lines }, n) => lines.map((line) => `${NAMES[n]}: ${line}`)),
      notes: [`A and B share one scale of colours.${end}`],
      warning: words
        .map(({ warning }) => warning)
        .join(" ")
        .trim(),
    };
    const keys = {
      bar: {
        scale: weights,
        marks: marksOf(weights, scenes.slice(0, 2).some(isClipped), scenes[0].quantity),
      },
      hatch: scenes.some(hasHidden) ? "hidden by the mask" : "",
      dashed: "",
    };
    return composeFigure(figure, keys, (context) => drawBeside(context, scenes));
  });
}

/**
 * @param {SvgDrawing} context
 * @param {Scene[]} scenes
 */
function drawBeside(context, scenes) {
  let x = 0;
  scenes.forEach((scene, n) => {
    context.save();
    context.translate(x, 0);
    draw(context, scene);
    Object.assign(context, { font: `bold ${scene.fonts.title}`, textBaseline: "top", textAlign: "left" });
    context.fillStyle = scene.colours.ink;
    context.fillText(NAMES[n], 0, 0);
    context.restore();
    const { camera, gutter } = scene;
    x += gutter.left + Math.min(camera.width, camera.S * camera.zoom) + GAP;
  });
}
