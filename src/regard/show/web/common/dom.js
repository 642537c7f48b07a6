// Small helpers to make elements. Text only ever goes in as text: nothing here reads HTML.

/** An element with attributes, `text`, and children. */
export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "text") made.textContent = value;
    else if (value === true) made.setAttribute(key, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

/**
 * A choice of one among a few, as radio buttons in a row: options are {value: label}.
 * Returns the fieldset with `.value` to set and `choose` called when the reader chooses.
 */
export function choice(legend, name, options, choose) {
  const box = element("fieldset", { class: "choice" }, element("legend", { text: legend }));
  const row = element("div", { class: "options" });
  const inputs = Object.entries(options).map(([value, label]) => {
    const input = element("input", { type: "radio", name, value });
    input.addEventListener("change", () => choose(value));
    row.append(element("label", {}, input, element("span", { class: "option", text: label })));
    return input;
  });
  box.append(row);
  Object.defineProperty(box, "value", {
    set: (value) => inputs.forEach((input) => (input.checked = input.value === value)),
    get: () => inputs.find((input) => input.checked)?.value,
  });
  return box;
}

/** A certificate's badge: what was found of a layer, in a word, with the whole sentence as its title. */
export function badge(evidence, words = evidence.certified ? "Certified" : "Not certified") {
  const good = evidence.certified;
  return element("span", {
    class: `badge ${good ? "good" : "bad"}`,
    text: words,
    title: evidence.text,
  });
}

/** Scrolls `box` until `part` is in sight. scrollIntoView would also change where Tab goes on from. */
export function reveal(part, box) {
  const [inner, outer] = [part.getBoundingClientRect(), box.getBoundingClientRect()];
  const by = (first, last) =>
    Math.min(0, inner[first] - outer[first]) || Math.max(0, inner[last] - outer[last]);
  box.scrollBy({ left: by("left", "right"), top: by("top", "bottom"), behavior: "instant" });
}
