// @ts-check
// Two arrows to drag, their dot product, and the shadow of one on the other that explains it.
// It draws into the element before this script.
"use strict";

{
  const UNIT = 100; // pixels of the drawing
  const REACH = 1.5; // how far from the origin an arrow may go
  const WIDTH = 340;
  const HEIGHT = 320;
  const STEP = 0.1; // of an arrow key
  const COLOURS = { q: "light-dark(#b4540f, #ff9a5c)", k: "light-dark(#12637f, #6cc3dd)" };
  const BELOW = "light-dark(#b03a48, #ff8f9c)";

  /** @type {{ q: [number, number], k: [number, number] }} */
  const vectors = { q: [1, 0.5], k: [0.3, 1.1] };
  const place = /** @type {HTMLElement} */ (document.currentScript?.previousElementSibling);

  /**
   * @param {string} name
   * @param {Record<string, string | number>} attributes
   * @param {string} [text]
   */
  function make(name, attributes, text = "") {
    const element = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, String(value));
    element.textContent = text;
    return element;
  }

  /** @param {[number, number]} vector @returns {[number, number]} */
  const onScreen = ([x, y]) => [WIDTH / 2 + UNIT * x, HEIGHT / 2 - UNIT * y];

  /** @param {number} value */
  const written = (value) =>
    value
      .toFixed(2)
      .replace(/^-(?=0\.00)/, "")
      .replace("-", "−");

  /** @param {number} value */
  const factor = (value) => (written(value).startsWith("−") ? `(${written(value)})` : written(value));

  const svg = /** @type {SVGSVGElement} */ (
    make("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "group", "aria-label": "Two vectors to move" })
  );
  const [middleX, middleY] = onScreen([0, 0]);
  for (const [x1, y1, x2, y2] of [
    [0, middleY, WIDTH, middleY],
    [middleX, 0, middleX, HEIGHT],
  ]) {
    svg.append(make("line", { x1, y1, x2, y2, stroke: "currentColor", "stroke-opacity": 0.25 }));
  }
  svg.append(
    make("circle", {
      cx: middleX,
      cy: middleY,
      r: UNIT,
      fill: "none",
      stroke: "currentColor",
      "stroke-opacity": 0.25,
    }),
  );
  const shadow = make("line", { "stroke-width": 9, "stroke-opacity": 0.45, "stroke-linecap": "round" });
  const drop = make("line", { stroke: "currentColor", "stroke-dasharray": "3 4", "stroke-opacity": 0.7 });
  svg.append(shadow, drop);
  const said = document.createElement("p");
  said.setAttribute("aria-live", "polite");

  const arrows = /** @type {const} */ (["q", "k"]).map((name) => {
    const colour = `stroke: ${COLOURS[name]}; fill: ${COLOURS[name]}`;
    const line = make("line", { style: colour, "stroke-width": 4, "stroke-linecap": "round" });
    const handle = make("g", {
      class: "handle",
      style: colour,
      tabindex: 0,
      role: "slider",
      "aria-label": `The vector ${name}: the arrow keys move it`,
      "aria-valuemin": -180,
      "aria-valuemax": 180,
    });
    // The larger circle, which is not seen, is for fingers.
    handle.append(
      make("circle", { r: 24, "fill-opacity": 0, stroke: "none" }),
      make("circle", { r: 8 }),
      make("text", { x: 14, y: -10, stroke: "none", "font-size": 18, "font-weight": 700 }, name),
    );
    handle.addEventListener("pointerdown", (event) => {
      handle.setPointerCapture(/** @type {PointerEvent} */ (event).pointerId);
      event.preventDefault();
      /** @type {SVGElement} */ (handle).focus();
    });
    handle.addEventListener("pointermove", (event) => {
      const pointer = /** @type {PointerEvent} */ (event);
      if (!handle.hasPointerCapture(pointer.pointerId)) return;
      const box = svg.getBoundingClientRect();
      const scale = WIDTH / box.width / UNIT;
      move(name, [
        (pointer.clientX - box.left - box.width / 2) * scale,
        (box.top + box.height / 2 - pointer.clientY) * scale,
      ]);
    });
    handle.addEventListener("keydown", (event) => {
      const [x, y] = vectors[name];
      const key = /** @type {KeyboardEvent} */ (event).key;
      /** @type {Record<string, [number, number]>} */
      const places = {
        ArrowLeft: [x - STEP, y],
        ArrowRight: [x + STEP, y],
        ArrowUp: [x, y + STEP],
        ArrowDown: [x, y - STEP],
      };
      if (!(key in places)) return;
      event.preventDefault();
      move(name, places[key]);
    });
    svg.append(line, handle);
    return { name, line, handle };
  });

  /** @param {"q" | "k"} name @param {[number, number]} to */
  function move(name, to) {
    const reach = Math.max(1, Math.hypot(...to) / REACH);
    vectors[name] = [to[0] / reach, to[1] / reach];
    draw();
  }

  /** @param {Element} line @param {[number, number]} from @param {[number, number]} to */
  function lay(line, from, to) {
    const [[x1, y1], [x2, y2]] = [onScreen(from), onScreen(to)];
    for (const [key, value] of Object.entries({ x1, y1, x2, y2 })) line.setAttribute(key, String(value));
  }

  function draw() {
    const { q, k } = vectors;
    const product = q[0] * k[0] + q[1] * k[1];
    const share = product / (q[0] * q[0] + q[1] * q[1] || 1); // of q, where the shadow of k ends
    /** @type {[number, number]} */
    const foot = [share * q[0], share * q[1]];
    lay(shadow, [0, 0], foot);
    lay(drop, k, foot);
    shadow.setAttribute("style", `stroke: ${product < 0 ? BELOW : COLOURS.k}`);
    for (const { name, line, handle } of arrows) {
      const [x, y] = vectors[name];
      lay(line, [0, 0], [x, y]);
      handle.setAttribute("transform", `translate(${onScreen([x, y]).join(" ")})`);
      handle.setAttribute("aria-valuenow", String(Math.round((Math.atan2(y, x) * 180) / Math.PI)));
      handle.setAttribute("aria-valuetext", `${written(x)}, ${written(y)}`);
    }
    const sum = `${factor(q[0])} · ${factor(k[0])} + ${factor(q[1])} · ${factor(k[1])}`;
    const lengths = Math.hypot(...q) * Math.hypot(...k);
    const angle = lengths ? (Math.acos(Math.max(-1, Math.min(1, product / lengths))) * 180) / Math.PI : 0;
    const weight = 1 / (1 + Math.exp(-product));
    said.replaceChildren(
      Object.assign(document.createElement("b"), { textContent: `q · k = ${sum} = ${written(product)}` }),
      document.createElement("br"),
      `The angle is ${angle.toFixed(0)}°. Beside a key that is orthogonal to q, this k gets a weight of ${written(weight)}.`,
    );
  }

  draw();
  const how = document.createElement("p");
  how.textContent =
    "Drag q and k. The thick line is the shadow of k on q: the dot product is its length times that of q, " +
    "and negative (red) where the shadow falls behind the origin.";
  place.replaceChildren(svg, said, how);
}
