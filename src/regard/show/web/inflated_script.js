// @ts-check
// The only script of a saved file that stands in it as it is: it inflates the page's code, and starts it.

import { unpackText } from "./source/arithmetic/packed.js";

const block = /** @type {HTMLElement} */ (document.getElementById("regard-script"));
unpackText(block.textContent.trim()).then((code) => {
  const script = document.createElement("script");
  script.textContent = code; // the page's policy allows it by its hash
  document.head.append(script);
});
