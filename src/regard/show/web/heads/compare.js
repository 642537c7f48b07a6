// @ts-check
// Two heads, or one head on two texts, side by side: their pictures, and their scores bar against bar.
// What is compared stands in the address as pair=text/layer/head,text/layer/head.

import { known } from "../common/arrays.js";
import { ramp } from "../common/colours.js";
import { latest, select } from "../common/controls.js";
import { contextOf, element } from "../common/dom.js";
import { score } from "../common/format.js";
import { layerOf } from "../common/layers.js";
import { theme } from "../common/theme.js";
import { topLevel } from "../common/tile.js";
import { endOf, namesOf, scoreBar, SCORES, sentence, words } from "./scores.js";

/** @param {HeadPlace} head */
const written = ({ text, layer, head }) => `${text}/${layer}/${head}`;

/**
 * Fills `root` when there is something to compare; returns {toggle(one), holds(one), show(state)}.
 * @param {HTMLElement} root
 * @param {App} app
 */
export function compare(root, app) {
  /** @type {State} */
  let state;
  let drawn = "";

  /** @returns {HeadPlace[]} */
  const pair = () => {
    const all = (state?.pair ?? "").split(",").filter(Boolean).map(read);
    return all.filter(known).slice(0, 2);
  };

  /**
   * What the address names, if there is such a head.
   * @param {string} text
   * @returns {HeadPlace | null}
   */
  function read(text) {
    const [first, layer, head] = text.split("/");
    const found = app.meta.texts[Number(first)]?.layers.find((one) => one.key === layer);
    if (!found?.heads.includes(Number(head))) return null;
    return { text: Number(first), layer, head: Number(head) };
  }

  /** @param {HeadPlace[]} list */
  function set(list) {
    app.set({ pair: list.map(written).join(",") });
  }

  const draw = latest(async (fresh) => {
    const chosen = pair();
    root.hidden = !chosen.length;
    const key = `${chosen.map(written).join(",")} ${theme()} ${app.meta.texts.length}`;
    if (key === drawn) return;
    drawn = key;
    if (!chosen.length) {
      root.replaceChildren();
      return;
    }
    const looked = await Promise.all(
      chosen.map(async (one) => {
        const all = await app.source.heads(one.text);
        return { all, own: all.find((head) => head.layer === one.layer && head.head === one.head) };
      }),
    );
    if (!fresh()) return;
    const clear = element("button", { class: "button", type: "button", text: "Close" });
    clear.addEventListener("click", () => set([]));
    root.replaceChildren(
      element(
        "div",
        { class: "compare-head" },
        element("h2", { text: chosen.length === 2 ? "Side by side" : "Compare with…" }),
        clear,
      ),
      element(
        "div",
        { class: "compare-body" },
        ...chosen.map((one, n) => side(one, n, chosen)),
        bars(chosen, looked),
      ),
    );
  });

  /**
   * @param {HeadPlace} one
   * @param {number} n
   * @param {HeadPlace[]} chosen
   */
  function side(one, n, chosen) {
    const canvas = element("canvas", { class: "compare-picture", role: "img" });
    canvas.setAttribute("aria-label", `The attention of layer ${one.layer}, head ${one.head}`);
    const about = layerOf(app.meta, one.text, one.layer);
    const open = element("button", { class: "plain", type: "button", text: "Open in the Map" });
    open.addEventListener("click", () => app.set({ view: "map", ...one, x: -1, y: -1, zoom: 0 }));
    const box = element(
      "figure",
      { class: `compare-side ${"ab"[n]}` },
      element(
        "figcaption",
        {},
        element("h3", { text: `Layer ${one.layer}, head ${one.head}` }),
        element("p", { class: "small quiet", text: app.meta.texts[one.text].title }),
      ),
      canvas,
      element("p", {
        class: "small quiet",
        text: `${about.mask}, ${about.rows.toLocaleString("en")} × ${about.cols.toLocaleString("en")}`,
      }),
      open,
    );
    if (!about.evidence.certified)
      box.append(element("p", { class: "small compare-doubt", text: about.evidence.text }));
    if (chosen.length === 1 && app.meta.texts.length > 1) {
      const other = select(
        "The same head on",
        (value) => value !== "" && set([one, { ...one, text: Number(value) }]),
      );
      other.fill(
        [
          ["", "another text…"],
          ...app.meta.texts.map((text, i) => [String(i), text.title]).filter(([i]) => Number(i) !== one.text),
        ],
        "",
      );
      box.append(other);
    }
    picture(canvas, one, about);
    return box;
  }

  /**
   * The whole map at the level of detail at which it is one tile.
   * @param {HTMLCanvasElement} canvas
   * @param {HeadPlace} one
   * @param {Layer} about
   */
  async function picture(canvas, one, about) {
    const z = topLevel(about.rows, about.cols);
    const tile = await app.source.tile(one.text, one.layer, one.head, z, 0, 0);
    const { pixels } = ramp();
    canvas.width = tile.cols;
    canvas.height = tile.rows;
    const context = contextOf(canvas);
    const image = context.createImageData(tile.cols, tile.rows);
    const out = new Uint32Array(image.data.buffer);
    // The root, as in the small pictures: what is faint can be seen as well.
    tile.mass.forEach((mass, n) => {
      if (tile.max[n] >= 0) out[n] = pixels[Math.round(255 * Math.sqrt(Math.min(1, mass)))];
    });
    context.putImageData(image, 0, 0);
  }

  /**
   * @param {HeadPlace[]} chosen
   * @param {{ all: HeadScores[], own: HeadScores | undefined }[]} looked
   */
  function bars(chosen, looked) {
    const names = namesOf(looked.map(({ own }) => own).filter(known));
    const everyone = looked.flatMap(({ all }) => all);
    const table = element("div", { class: "compare-scores" });
    for (const name of names) {
      const [title, about] = SCORES[name] ?? [words(name), ""];
      const end = endOf(name, everyone);
      const lines = looked.map(({ own }, n) => {
        const one = own?.scores[name];
        if (!one) return element("span", { class: "compare-line" });
        return element(
          "span",
          { class: "compare-line", title: sentence(name, one) },
          scoreBar(one, end, "ab"[n]),
          element("span", { class: "score-value", text: score(name, one.value) }),
        );
      });
      table.append(
        element(
          "div",
          { class: "compare-row" },
          element("span", { class: "score-name", text: title, title: about }),
          element("div", {}, ...lines),
        ),
      );
    }
    if (chosen.length < 2)
      table.append(
        element("p", {
          class: "note",
          text: "Choose a second head below, or the same head on another text.",
        }),
      );
    return table;
  }

  return {
    /** @param {HeadPlace} one */
    toggle(one) {
      const now = pair();
      const rest = now.filter((other) => written(other) !== written(one));
      set(rest.length < now.length ? rest : [...rest.slice(-1), one]);
    },
    /** @param {HeadPlace} one */
    holds: (one) => pair().some((other) => written(other) === written(one)),
    /** @param {State} now */
    show(now) {
      state = now;
      draw();
    },
  };
}
