// @ts-check
// The only script of a saved file that stands in it as it is: it inflates the page's code, and starts it.

import { unpackText } from "./source/arithmetic/packed.js";

const block = /** @type {HTMLElement} */ (document.getElementById("regard-script"));
unpackText(block.textContent.trim()).then((code) => {
  const script = document.createElement("script");
  script.src = URL.createObjectURL(new Blob([code], { type: "text/javascript" }));
  script.addEventListener("load", () => URL.revokeObjectURL(script.src));
  document.head.append(script);
});
