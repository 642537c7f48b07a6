// @ts-check
// The served page: the code of the first view comes first, and that of the others once there is something to see.

import { start } from "./main.js";
import { openOverHttp } from "./source/over_http.js";

start(openOverHttp, () => {
  const script = document.createElement("script");
  script.src = "web/later.js";
  document.head.append(script);
});
