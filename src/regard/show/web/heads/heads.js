// @ts-check
// The gallery: every head's picture with its scores, to sort, to filter, and to hold two against each other.

import { paintThumb } from "../common/colours.js";
import { empty, latest, select } from "../common/controls.js";
import { choice, element } from "../common/dom.js";
import { some } from "../common/format.js";
import { absences, doubts, layerOf } from "../common/layers.js";
import { theme } from "../common/theme.js";
import { THUMB } from "../common/tile.js";
import { compare } from "./compare.js";
import { endOf, namesOf, scoreLine, SCORES, sentence, words } from "./scores.js";

/**
 * @typedef {object} Card
 * @property {HTMLLIElement} card
 * @property {HTMLCanvasElement} canvas
 * @property {HTMLButtonElement} button
 * @property {HTMLButtonElement} take
 * @property {HTMLElement} lines
 * @property {HeadScores} head
 */

/**
 * @param {HTMLElement} root
 * @param {App} app
 * @returns {View}
 */
export function heads(root, app) {
  const sort = select("Sort by", (value) => app.set({ sort: value }));
  const order = choice("Order", "heads-order", { high: "highest first", low: "lowest first" }, (value) =>
    app.set({ order: value }),
  );
  const label = select("Does", (value) => app.set({ label: value }));
  const layer = select("Layer", (value) => app.set({ layerFilter: value }));
  const detail = choice("Show", "heads-detail", { scores: "scores", pictures: "pictures" }, (value) =>
    app.set({ detail: value }),
  );
  const number = element("p", { class: "small quiet", "aria-live": "polite" });
  const both = element("section", { class: "compare", "aria-label": "Two heads side by side" });
  const warning = element("p", { class: "note heads-warning" });
  const list = element("ul", { class: "gallery", "aria-label": "Heads" });
  const keys = element("p", {
    class: "note",
    text:
      "A tick marks what looking at everything alike would score, a hollow one what shuffled tokens give, a thin " +
      "line the 95% interval. Arrow keys walk, Enter opens a head in the Map, C takes it to compare.",
  });
  root.append(
    element("div", { class: "bar-of-choices" }, sort, order, label, layer, detail, number),
    element("div", { class: "scroll" }, element("div", { class: "column wide" }, both, warning, list, keys)),
  );
  const comparison = compare(both, app);
  /** @type {Map<string, Card>} */
  const cards = new Map(); // place → {card, canvas, button, head}
  /** @type {HeadScores[]} */
  let found = []; // what is known of every head of the text
  let text = -1;
  let painted = ""; // the theme that the pictures are in
  /** @type {State} */
  let state;
  let current = ""; // the card that the keyboard is at

  /** @param {HeadScores} head */
  const place = (head) => `${head.layer}/${head.head}`;
  /** @param {HeadScores} head */
  const labelsOf = (head) => head.labels ?? (head.label ? [head.label] : []);

  const cardOf = (/** @type {string} */ key) => /** @type {Card} */ (cards.get(key));

  const open = latest(async (fresh) => {
    text = state.text;
    root.classList.add("waiting");
    list.replaceChildren(empty("Looking at what every head does…"));
    number.textContent = "";
    let known;
    try {
      known = await app.source.heads(text);
    } catch (error) {
      if (fresh()) list.replaceChildren(empty(`The scores did not come. ${error.message}`));
      return;
    }
    if (!fresh()) return;
    root.classList.remove("waiting");
    found = known;
    build();
    arrange();
    pictures(fresh);
  });

  function build() {
    cards.clear();
    const names = namesOf(found);
    const ends = Object.fromEntries(names.map((name) => [name, endOf(name, found)]));
    for (const head of found) {
      const about = layerOf(app.meta, text, head.layer);
      const canvas = element("canvas", { width: THUMB, height: THUMB });
      const button = element("button", { class: "gallery-picture", type: "button", tabindex: "-1" }, canvas);
      button.setAttribute("aria-label", described(head, about));
      button.title = "Open in the Map";
      button.addEventListener("click", () =>
        app.set({ view: "map", layer: head.layer, head: head.head, x: -1, y: -1, zoom: 0 }),
      );
      const take = element("button", {
        class: "plain take",
        type: "button",
        tabindex: "-1",
        text: "Compare",
        "aria-pressed": "false",
      });
      take.addEventListener("click", () => comparison.toggle({ text, layer: head.layer, head: head.head }));
      const title = element("h3", { text: `Layer ${head.layer}, head ${head.head}` });
      const tags = element("p", { class: "tags" });
      for (const one of labelsOf(head)) tags.append(element("span", { class: "tag", text: words(one) }));
      if (!about.evidence.certified)
        tags.append(element("span", { class: "tag bad", text: "not certified", title: about.evidence.text }));
      const lines = element("div", { class: "score-lines" });
      for (const name of names)
        if (head.scores[name]) lines.append(scoreLine(name, head.scores[name], ends[name]));
      if (!lines.children.length)
        lines.append(
          element("p", { class: "small quiet", text: "No scores: the tokens of this layer are not known." }),
        );
      const card = element(
        "li",
        { class: "card" },
        button,
        element(
          "div",
          { class: "card-body" },
          element("div", { class: "card-head" }, title, take),
          tags,
          lines,
        ),
      );
      cards.set(place(head), { card, canvas, button, take, lines, head });
    }
    painted = "";
  }

  /**
   * @param {HeadScores} head
   * @param {Layer} about
   */
  function described(head, about) {
    const known = Object.entries(head.scores).map(([name, one]) => sentence(name, one));
    const called = labelsOf(head).map(words).join(", ") || "no label";
    const proof = about.evidence.certified ? "" : "Its layer is not certified. ";
    return `Layer ${head.layer}, head ${head.head}: ${called}. ${proof}${known.join(". ")}`;
  }

  /**
   * Paints the pictures, layer by layer as they come.
   * @param {() => boolean} [fresh]
   */
  async function pictures(fresh = () => true) {
    const name = theme();
    if (painted === name) return;
    painted = name;
    for (const about of app.meta.texts[text].layers) {
      let thumbs;
      try {
        thumbs = await app.source.thumbs(text, about.key);
      } catch (error) {
        app.status(`The pictures of layer ${about.key} did not come: ${error.message}`);
        continue;
      }
      if (!fresh() || painted !== name) return;
      about.heads.forEach((head, at) => {
        const one = cards.get(`${about.key}/${head}`);
        if (one)
          paintThumb(
            one.canvas,
            thumbs.pictures.subarray(at * THUMB * THUMB, (at + 1) * THUMB * THUMB),
            name,
          );
      });
    }
  }

  /** Puts the cards that are asked for in the order that is asked for. */
  function arrange() {
    const names = namesOf(found);
    const by = names.includes(state.sort) ? state.sort : "";
    const all = [...new Set(found.flatMap(labelsOf))].sort();
    /** @param {(head: HeadScores) => boolean} test */
    const count = (test) => found.filter(test).length;
    sort.fill(
      [["place", "place in the model"], ...names.map((name) => [name, SCORES[name]?.[0] ?? words(name)])],
      by || "place",
    );
    label.fill(
      [
        ["any", "anything"],
        ...all.map((one) => [one, `${words(one)} (${count((head) => labelsOf(head).includes(one))})`]),
        ["none", `nothing with a name (${count((head) => !labelsOf(head).length)})`],
      ],
      state.label,
    );
    layer.fill(
      [["all", "all"], ...app.meta.texts[text].layers.map((one) => [one.key, one.key])],
      state.layerFilter,
    );
    order.value = state.order;
    order.hidden = !by;
    detail.value = state.detail;
    list.classList.toggle("pictures-only", state.detail === "pictures");
    let shown = found.filter(
      (head) =>
        (state.layerFilter === "all" || head.layer === state.layerFilter) &&
        (state.label === "any" ||
          (state.label === "none" ? !labelsOf(head).length : labelsOf(head).includes(state.label))),
    );
    if (by) {
      const sign = state.order === "low" ? 1 : -1;
      /** @param {HeadScores} head */
      const value = (head) => head.scores[by]?.value ?? null;
      shown = shown.toSorted((a, b) => {
        const [x, y] = [value(a), value(b)];
        if (x === null || y === null) return Number(x === null) - Number(y === null); // those come last
        return sign * (x - y);
      });
    }
    const wanted = shown.map((head) => cardOf(place(head)).card);
    const same =
      wanted.length === list.children.length && wanted.every((card, n) => card === list.children[n]);
    if (!same) list.replaceChildren(...wanted); // what stays where it is keeps the focus
    for (const { lines } of cards.values()) {
      for (const line of lines.children)
        line.classList.toggle("sorted", line.getAttribute("data-name") === by);
    }
    if (!shown.length) list.append(empty("No head does this here."));
    number.textContent =
      shown.length === found.length
        ? some(found.length, "head")
        : `${shown.length} of ${some(found.length, "head")}`;
    const whole = app.meta.texts[text];
    warning.textContent = [doubts(whole.layers), absences(whole.missing)].join(" ").trim();
    warning.hidden = !warning.textContent;
    if (!shown.some((head) => place(head) === current)) current = shown.length ? place(shown[0]) : "";
    reach();
  }

  /** Only the card that the keyboard is at can be reached with Tab. */
  function reach() {
    for (const [key, { button, take }] of cards) button.tabIndex = take.tabIndex = key === current ? 0 : -1;
  }

  list.addEventListener("focusin", (event) => {
    for (const [key, one] of cards) if (one.card.contains(/** @type {Node} */ (event.target))) current = key;
    reach();
  });
  list.addEventListener("keydown", (event) => {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    const shown = [...list.children].map(
      (card) => [...cards.entries()].find(([, one]) => one.card === card)?.[0],
    );
    const at = shown.indexOf(current);
    const tops = [...list.querySelectorAll("li")].map((card) => card.offsetTop);
    const wide = Math.max(1, tops.filter((top) => top === tops[0]).length);
    /** @type {Record<string, number>} */
    const places = {
      ArrowRight: at + 1,
      ArrowLeft: at - 1,
      ArrowDown: at + wide,
      ArrowUp: at - wide,
      Home: 0,
      End: shown.length - 1,
    };
    const to = places[event.key];
    if (to !== undefined) {
      const next = cards.get(shown[Math.min(shown.length - 1, Math.max(0, to))] ?? "");
      next?.button.focus();
      next?.card.scrollIntoView({ block: "nearest" });
    } else if (event.key.toLowerCase() === "c") {
      cards.get(current)?.take.click();
    } else return;
    event.preventDefault();
  });

  return {
    show(now) {
      state = now;
      if (text !== state.text || !cards.size) open();
      else {
        arrange();
        pictures();
      }
      comparison.show(state);
      for (const { take, head } of cards.values()) {
        const taken = comparison.holds({ text, layer: head.layer, head: head.head });
        take.setAttribute("aria-pressed", String(taken));
        take.textContent = taken ? "Comparing" : "Compare";
      }
    },
    hide() {},
  };
}
