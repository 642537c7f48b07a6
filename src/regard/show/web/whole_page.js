// @ts-check
// The page with all its code at once, as a file and a notebook carry it.

import { addLaterViews } from "./later_views.js";
import { start } from "./main.js";
import { open } from "./source/source.js";

addLaterViews();
start(open);
