// @ts-check
// The page as a file and a notebook carry it.

import { start } from "./main.js";
import { open } from "./source/source.js";

start(open);
