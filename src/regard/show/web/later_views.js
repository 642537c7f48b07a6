// @ts-check
// What is not seen first: the other views, and the Map's exports. A served page loads their code after that of Map and Text.

import { CacheView } from "./cache/cache.js";
import { addPart } from "./parts/later_parts.js";
import { CompareView } from "./compare/compare.js";
import { HeadsView } from "./heads/heads.js";
import { ImageView } from "./image/image.js";
import { mapExports } from "./map/exports.js";
import { StepsView } from "./steps/steps.js";
import { SurveyView } from "./survey/survey.js";
import { TimeView } from "./time/time.js";
import { WriteView } from "./write/write.js";
import { addViews } from "./views.js";

/** Makes them known to the page. */
export function addLaterViews() {
  addPart("map exports", mapExports);
  addViews({
    image: ImageView,
    heads: HeadsView,
    compare: CompareView,
    steps: StepsView,
    write: WriteView,
    cache: CacheView,
    survey: SurveyView,
    time: TimeView,
  });
}
