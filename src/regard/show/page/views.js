// The views that the page has, in the order of their tabs. A view is a function (root, app) that fills its
// root and returns {show(state, before), hide()}; `needs` says of the meta whether the view has something to show.

import { map } from "./map.js";

export const VIEWS = [{ name: "map", title: "Map", make: map }];
