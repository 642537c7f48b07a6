// @ts-check
// What the served page loads after its first view.

import { addLaterViews } from "./later_views.js";

addLaterViews();
