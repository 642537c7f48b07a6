// @ts-check
// What is not seen first: the other views, and the Map's exports. A served page loads their code after that of the Map.

import { cache } from "./cache/cache.js";
import { addPart } from "./parts/later_parts.js";
import { compare } from "./compare/compare.js";
import { heads } from "./heads/heads.js";
import { image } from "./image/image.js";
import { mapExports } from "./map/exports.js";
import { steps } from "./steps/steps.js";
import { survey } from "./survey/survey.js";
import { text } from "./text/text.js";
import { time } from "./time/time.js";
import { addViews } from "./views.js";

/** Makes them known to the page. */
export function addLaterViews() {
  addPart("map exports", mapExports);
  addViews({ image, text, heads, compare, steps, cache, survey, time });
}
