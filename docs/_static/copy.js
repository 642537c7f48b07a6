// A button on each block of code that copies it: of a session, only what was typed.
"use strict";

/** The lines of a session that a reader would type, or the whole block if it is no session. */
function typed(block) {
  if (!block.querySelector(".gp")) return block.innerText;
  const copy = block.cloneNode(true);
  // The newline after a line belongs to no element, and the output of a command to one of class "go".
  copy.querySelectorAll(".gp, .go, .gt, .linenos").forEach((part) => part.replaceWith("\u0000"));
  const lines = copy.textContent.split("\n").filter((line) => line.includes("\u0000"));
  return lines
    .map((line) => line.replaceAll("\u0000", ""))
    .filter((line, i, all) => line.trim() || (all[i - 1] ?? "").startsWith(" "))
    .join("\n");
}

for (const block of document.querySelectorAll("div.highlight > pre")) {
  const button = document.createElement("button");
  button.className = "copy";
  button.type = "button";
  button.textContent = "Copy";
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(typed(block));
      button.textContent = "Copied";
    } catch {
      button.textContent = "Select and copy it yourself";
    }
    setTimeout(() => (button.textContent = "Copy"), 1500);
  });
  block.parentElement.append(button);
}
