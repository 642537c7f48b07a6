// @ts-check
// The tokens as running text: point at one, and what it looks at (or who looks at it) is shaded.
// It knows one row or one column of weights at a time; the same colours as the map.

import { css, inkOn, makeScale } from "../common/colours.js";
import { headPicker, latest, rampBar } from "../common/controls.js";
import { choice, element } from "../common/dom.js";
import { count, weight } from "../common/format.js";
import { doubts, layerOf } from "../common/layers.js";
import { theme } from "../common/theme.js";
import { axisOf, short, visible } from "../common/tokens.js";
import { beside, inRunningText, strongest } from "./layout.js";
import { newText } from "./new_text.js";

const LEVELS = 64; // shades: a token whose shade stays the same is left alone
const RANKED = 12;
const AXES = /** @type {const} */ (["queries", "keys"]);

/** @typedef {HTMLSpanElement & { token: number }} TokenSpan */

/**
 * @param {HTMLElement} root
 * @param {App} app
 * @returns {View}
 */
export function text(root, app) {
  const picker = headPicker(app);
  const direction = choice("Shade", "text-way", { at: "what it looks at", by: "who looks at it" }, (value) =>
    app.set({ direction: value, row: -1, col: -1 }),
  );
  const scope = choice(
    "of",
    "text-of",
    { head: "one head", layer: "the layer", all: "all layers" },
    (value) => app.set({ scope: value }),
  );
  const sink = choice("Sink", "text-sink", { in: "in", apart: "left out" }, (value) =>
    app.set({ sink: value }),
  );
  const scale = choice("Scale", "text-scale", { linear: "linear", log: "log" }, (value) =>
    app.set({ scale: value }),
  );
  const ramp = rampBar();
  const body = element("div", {
    class: "text-body",
    role: "listbox",
    tabindex: "0",
    "aria-label": "Tokens of the text",
  });
  const said = element("p", { class: "text-said", "aria-live": "polite" });
  const chosen = element("div", { class: "notes-block" });
  const ranked = element("ol", { class: "ranked" });
  const rankedTitle = element("h3");
  const ranking = element("div", { class: "notes-block" }, rankedTitle, ranked);
  const note = element("p", { class: "small quiet text-note" });
  const more = app.meta.can.capture ? newText(app) : "";
  root.append(
    element("div", { class: "bar-of-choices" }, picker, direction, scope, sink, scale),
    element(
      "div",
      { class: "text-view" },
      element("div", { class: "text-main" }, said, element("div", { class: "text-scroll" }, more, body)),
      element(
        "aside",
        { class: "text-notes", "aria-label": "The chosen token" },
        chosen,
        ranking,
        ramp,
        note,
      ),
    ),
  );

  /** @type {WrittenText} */
  let texts; // what `written` gives
  /** @type {TokenSpan[]} */
  let spans = []; // one a token
  let levels = new Uint8Array(0); // the shade of each
  let drawn = ""; // which text the spans are of
  let colours = ""; // and which theme their shades
  /** @type {HTMLElement[]} */
  const marked = []; // the spans that are outlined or struck out
  let at = -1; // the token that is pointed at
  let under = -1; // the token under the pointer while another is pinned
  /** @type {Shaded | null} */
  let found = null; // {token, weights, from} of what is shaded
  /** @type {State} */
  let state;

  const looking = () => state.direction !== "by";
  const oneHead = () => state.scope === "head";
  const about = () => layerOf(app.meta, state.text, state.layer);
  /**
   * What is written out: the tokens, and where on them the layer's queries and keys begin.
   * @returns {WrittenText}
   */
  const written = () => {
    const layer = about();
    const [queries, keys] = AXES.map((axis) => axisOf(app.meta, state.text, layer, axis));
    if (queries && keys && queries.tokens === keys.tokens)
      return { tokens: keys.tokens, queries: queries.from, keys: keys.from };
    // One text looks at another: both are written, the one that is looked at first.
    /** @param {number} size */
    const numbered = (size) => ({ tokens: Array.from({ length: size }, (_, i) => ` ${i}`), from: 0 });
    if (!queries && !keys && layer.stack !== "cross")
      return { tokens: numbered(layer.cols).tokens, queries: layer.cols - layer.rows, keys: 0 };
    const [a, b] = [keys ?? numbered(layer.cols), queries ?? numbered(layer.rows)];
    return {
      tokens: [...a.tokens, ...b.tokens],
      keys: a.from,
      queries: a.tokens.length + b.from,
      second: a.tokens.length,
    };
  };
  const offsets = () => {
    const { rows, cols } = about();
    return looking()
      ? { mine: texts.queries, size: rows, theirs: texts.keys }
      : { mine: texts.keys, size: cols, theirs: texts.queries };
  };
  const pinned = () => {
    const { mine } = offsets();
    const index = looking() ? state.row : state.col;
    return index >= 0 ? index + mine : -1;
  };

  function build() {
    const { tokens, second } = texts;
    const { boundary } = app.meta.texts[state.text];
    const blank = element("span", { class: "tok", role: "option" }); // copies are quicker, and there are many
    spans = tokens.map((token, i) => {
      const span = Object.assign(/** @type {HTMLSpanElement} */ (blank.cloneNode()), { token: i });
      span.id = `tok-${i}`;
      span.textContent = inRunningText(token);
      if (i > 0 && i === boundary) span.classList.add("first-written");
      return span;
    });
    levels = new Uint8Array(spans.length);
    // The last line end stands outside of its token, which would otherwise begin the next line.
    body.replaceChildren(...spans.flatMap((span, i) => (tokens[i].endsWith("\n") ? [span, "\n"] : [span])));
    if (second)
      spans[second]?.before(
        element("span", { class: "second-text", text: "looks at the text above:", role: "presentation" }),
      );
    at = under = -1;
    found = null;
  }

  /** Shades the tokens by the weights of what is found; only those whose shade changes are touched. */
  function paint() {
    const shade =
      found && makeScale({ scale: state.scale, top: found.top, bottom: Math.min(1e-4, found.top / 10) });
    const name = theme();
    for (let i = 0; i < spans.length; i++) {
      const level = found && shade ? levelOf(i, found, shade) : 0;
      if (level === levels[i]) continue;
      levels[i] = level;
      const { style, classList } = spans[i];
      classList.toggle("unseen", level === 1);
      style.backgroundColor = level > 2 ? css((level - 2) / LEVELS, name) : "";
      style.color = level > 2 ? inkOn((level - 2) / LEVELS, name) : "";
    }
    for (const span of marked.splice(0)) span.classList.remove("at", "left-out");
    if (!found) return;
    mark(spans[found.token], "at");
    mark(spans[found.without], "left-out");
  }

  /**
   * @param {HTMLElement | undefined} span
   * @param {string} kind
   */
  function mark(span, kind) {
    if (!span) return;
    span.classList.add(kind);
    marked.push(span);
  }

  function tell() {
    const all = texts.tokens;
    const verb = looking() ? "looks at" : "is looked at by";
    chosen.replaceChildren();
    ranked.replaceChildren();
    ranking.hidden = !found;
    ramp.hidden = !found;
    note.textContent = "";
    if (!found) {
      said.textContent = at < 0 ? "Point at a token, or move with the arrow keys; Enter pins it." : "…";
      chosen.append(element("p", { class: "quiet", text: "No token is chosen yet." }));
      return;
    }
    const { best, total, seen } = strongest(found, RANKED);
    const { top } = found;
    /** @param {number} token */
    const name = (token) => `“${short(all[token] ?? "", 24)}”`;
    const other = pinned() >= 0 && under >= 0 ? under : -1;
    if (other >= 0) {
      const w = found.weights[other - found.from] ?? 0;
      said.textContent = `${name(found.token)} ${verb} ${name(other)}: ${weight(w)}`;
    } else {
      const few = best.slice(0, 3).map(({ token, w }) => `${name(token)} ${weight(w)}`);
      said.textContent = `${name(found.token)} ${verb} ${few.join(", ") || "nothing"}`;
    }
    chosen.append(
      element("h3", { text: `Token ${found.token}${pinned() >= 0 ? ", pinned" : ""}` }),
      element("p", { class: "big-token token", text: visible((all[found.token] ?? "").slice(0, 60)) }),
      element("p", { class: "small quiet", text: scopeSaid() }),
    );
    rankedTitle.textContent = looking() ? "Looks most at" : "Is looked at most by";
    ranked.append(
      ...best.map(({ token, w }) => {
        const button = element(
          "button",
          { type: "button", title: `Go to token ${token}` },
          element("span", { class: "place", text: token }),
          element("span", { class: "token", text: short(all[token] ?? "", 24) }),
          element("span", { class: "weight", text: weight(w) }),
        );
        button.style.setProperty("--share", String(w / top));
        button.addEventListener("click", () => pin(token));
        return element("li", {}, button);
      }),
    );
    ramp.show("0", weight(found.top));
    const rest = total - best.reduce((sum, { w }) => sum + w, 0);
    const notes = [];
    if (seen > best.length)
      notes.push(`${count(seen - best.length)} more tokens: ${weight(Math.max(0, rest))} together.`);
    if (found.without >= 0) {
      notes.push(
        `Left out of the shading: ${name(found.without)}, token ${found.without}, ` +
          `with ${weight(found.weights[found.without - found.from] ?? 0)}.`,
      );
    }
    if (looking()) notes.push(`Shown here: ${weight(total)} of the row’s attention.`);
    else notes.push(`Sum over the tokens that look at it: ${total.toFixed(2)}.`);
    note.textContent = [...notes, doubts(together())].join(" ").trimEnd();
  }

  /** The layers that are shown together: where there are several stacks, those of the chosen one's. */
  function together() {
    if (state.scope !== "all") return [about()];
    return app.meta.texts[state.text].layers.filter((layer) => layer.stack === about().stack);
  }

  /**
   * The weights of a row or a column, over what is shown together.
   * @param {Source["row"]} ask
   * @param {number} index
   * @returns {Promise<Float32Array>}
   */
  async function weightsOf(ask, index) {
    const layers = together();
    if (state.scope !== "all") return ask(state.text, about().key, oneHead() ? state.head : "mean", index);
    if (layers.length === app.meta.texts[state.text].layers.length)
      return ask(state.text, "mean", "mean", index);
    const found = await Promise.all(layers.map((layer) => ask(state.text, layer.key, "mean", index)));
    const heads = layers.reduce((sum, layer) => sum + layer.heads.length, 0);
    return found[0].map((_, i) =>
      found.reduce((sum, weights, n) => sum + (weights[i] * layers[n].heads.length) / heads, 0),
    );
  }

  function scopeSaid() {
    const { stack } = about();
    if (state.scope === "all") return `The mean over all heads of all ${stack ? `${stack} ` : ""}layers`;
    if (state.scope === "layer")
      return `The mean over the ${about().heads.length} heads of layer ${about().key}`;
    return `Layer ${about().key}, head ${state.head}`;
  }

  /** The key that gets the most, of the head or over those that are shown together. */
  async function sinkToken() {
    if (state.sink !== "apart") return -1;
    /** @type {Map<number, number>} */
    const sums = new Map();
    for (const layer of together()) {
      const { sinks } = await app.source.thumbs(state.text, layer.key);
      sinks.forEach(({ key, share }, h) => {
        if (oneHead() && layer.heads[h] !== state.head) return;
        sums.set(key, (sums.get(key) ?? 0) + share);
      });
    }
    const best = [...sums].sort((a, b) => b[1] - a[1])[0];
    return best ? best[0] + texts.keys : -1;
  }

  const look = latest(async (fresh) => {
    const token = pinned() >= 0 ? pinned() : at;
    const { mine, theirs, size } = offsets();
    const index = token - mine;
    if (token < 0 || index < 0 || index >= size) {
      found = null;
      paint();
      tell();
      if (token >= 0) said.textContent = "This layer did not read that token in the pass that was captured.";
      return;
    }
    const ask = looking() ? app.source.row : app.source.column;
    const without = await sinkToken();
    const weights = await weightsOf(ask, index);
    if (!fresh()) return;
    // Looked at by: the sink's own column is what is asked for, so nothing is left out.
    const out = looking() ? without : -1;
    let top = 0;
    weights.forEach((w, i) => {
      if (w > top && i + theirs !== out) top = w;
    });
    found = { token, weights, from: theirs, without: out, top: top || 1 };
    paint();
    tell();
  });

  /** @param {number} token */
  function point(token) {
    if (pinned() >= 0) {
      under = token;
      body.setAttribute("aria-activedescendant", token >= 0 ? `tok-${token}` : "");
      if (found) tell();
      return;
    }
    if (token === at || token < 0) return;
    at = token;
    body.setAttribute("aria-activedescendant", `tok-${token}`);
    look();
  }

  /** @param {number} token */
  function pin(token) {
    const { mine, size } = offsets();
    const index = token - mine;
    if (token < 0 || index < 0 || index >= size) return;
    under = -1;
    at = token;
    app.set(looking() ? { row: index, col: -1 } : { col: index, row: -1 });
    spans[token].scrollIntoView({ block: "nearest" });
  }

  function unpin() {
    app.set({ row: -1, col: -1 });
    under = -1;
  }

  body.addEventListener("pointerover", (event) => {
    const token = tokenOf(event);
    if (token >= 0) point(token);
  });
  body.addEventListener("pointerleave", () => pinned() >= 0 && point(-1));
  body.addEventListener("click", (event) => {
    const token = tokenOf(event);
    if (token < 0) return;
    if (token === pinned()) unpin();
    else pin(token);
  });
  body.addEventListener("keydown", (event) => {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    const now = pinned() >= 0 && under >= 0 ? under : pinned() >= 0 ? pinned() : at;
    const here = Math.max(0, now);
    const to = {
      ArrowRight: () => (now < 0 ? 0 : here + 1),
      ArrowLeft: () => here - 1,
      ArrowDown: () => beside(spans, here, 1),
      ArrowUp: () => beside(spans, here, -1),
      Home: () => 0,
      End: () => spans.length - 1,
    }[event.key];
    if (to) {
      const token = Math.min(spans.length - 1, Math.max(0, to()));
      point(token);
      spans[token].scrollIntoView({ block: "nearest" });
    } else if (event.key === "Enter" || event.key === " ") {
      if (now === pinned()) unpin();
      else pin(now);
    } else if (event.key === "Escape") unpin();
    else return;
    event.preventDefault();
  });
  body.addEventListener("focus", () => {
    if (pinned() < 0 && at < 0) point(Math.max(0, offsets().mine));
  });

  return {
    show(now) {
      state = now;
      const stacks = new Set(app.meta.texts[state.text].layers.map((layer) => layer.stack));
      picker.show(state, { heads: oneHead(), layers: state.scope !== "all" || stacks.size > 1 });
      direction.value = looking() ? "at" : "by";
      scope.value = state.scope;
      sink.value = state.sink;
      scale.value = state.scale;
      sink.hidden = !looking();
      texts = written();
      const wanted = `${state.text} ${texts.tokens.length} ${texts.second} ${about().queries_of}`;
      if (drawn !== wanted) build();
      else if (colours !== theme()) levels.fill(255); // every shade anew
      [drawn, colours] = [wanted, theme()];
      if (pinned() >= 0) at = pinned();
      body.querySelector("[aria-selected]")?.removeAttribute("aria-selected");
      spans[pinned()]?.setAttribute("aria-selected", "true");
      look();
    },
    hide() {
      under = -1;
    },
  };
}

/**
 * The shade of a token: 0 is plain, 1 is out of sight, the others are shades.
 * @param {number} token
 * @param {Shaded} found
 * @param {ColourScale} shade
 */
function levelOf(token, found, shade) {
  if (token === found.without) return 0;
  const w = found.weights[token - found.from] ?? 0;
  if (w > 0) return 2 + Math.round(shade.at(w) * LEVELS);
  return token === found.token ? 0 : 1;
}

/**
 * The token that an event is about, or -1.
 * @param {Event} event
 */
function tokenOf(event) {
  const span = event.target instanceof Element ? event.target.closest(".tok") : null;
  return span ? /** @type {TokenSpan} */ (span).token : -1;
}
