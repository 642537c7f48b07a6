// @ts-check
// The page as a server sends it.

import { start } from "./main.js";
import { openOverHttp } from "./source/over_http.js";

start(openOverHttp);
