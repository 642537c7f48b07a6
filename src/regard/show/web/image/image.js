// @ts-check
// The picture that a vision model read, with its patches: point at a patch, CLS or a register to see what it attends
// to, or what attends to it, as heat over the picture. It knows one row or one column of weights at a time.

import { latest } from "../parts/controls.js";
import { ARROWS, element, onKeys } from "../parts/dom.js";
import { percent } from "../data/format.js";
import { isTower, layoutOf, patchOf } from "../data/patch_layout.js";
import { axisOf } from "../data/tokens.js";
import { exportMenu } from "../picture/menu.js";
import { strongest } from "../text/ranking.js";
import { layersInScope, weightsInScope } from "../text/scope.js";
import { PageView } from "../view.js";
import { imageFigure, patchRows } from "./exports.js";
import { makeImageControls } from "./image_controls.js";
import { ImageNotes } from "./image_notes.js";
import { HeadPictures } from "./head_pictures.js";
import {
  firstChoice,
  heatTop,
  middlePatch,
  otherTokens,
  outlierTokens,
  tokenName,
  tokenOfPatch,
} from "./patches.js";
import { NO_MARKS, PictureCanvas } from "./picture_canvas.js";
import { TokenChips } from "./token_chips.js";

const SOON = 150; // milliseconds after which the pictures of the other heads follow

export class ImageView extends PageView {
  /** @param {ViewPlace} place */
  constructor(...place) {
    super(...place);
    const { root, app } = this;
    const save = exportMenu(app, {
      name: () => `image-layer-${this.layer.key}-token-${this.heat?.token ?? 0}`,
      picture: () => imageFigure(this),
      table: () => patchRows(this),
    });
    this.controls = makeImageControls(app, save);
    this.said = element("p", { class: "text-said", "aria-live": "polite" });
    this.stage = element("div", {
      class: "image-stage",
      tabindex: "0",
      role: "group",
      "aria-label": "Picture with its patches: arrow keys move, Enter pins",
    });
    this.chips = new TokenChips((token) => this.toggle(token));
    this.notes = new ImageNotes((token) => this.pin(token));
    this.heads = new HeadPictures(app);
    this.about = element("p", { class: "small quiet image-about" });
    /** @type {PictureCanvas[]} */
    this.pictures = [];
    this.drawn = ""; // which pictures there are
    this.at = -1; // the token that is pointed at while none is pinned
    this.under = -1; // the token under the pointer or the keyboard while another is pinned
    /** @type {Heat | null} */
    this.heat = null;
    /** @type {Map<number, number>} */
    this.outliers = new Map();
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    this.timer = undefined;
    this.look = latest((fresh) => this.findWeights(fresh));
    const parts = [this.chips.box, this.stage, this.controls.look, this.heads.box, this.about];
    const scroll = element("div", { class: "image-scroll" }, ...parts);
    const main = element("div", { class: "text-main" }, this.said, scroll);
    root.append(this.controls.bar, element("div", { class: "text-view" }, main, this.notes.box));
    this.listen();
    new ResizeObserver(() => this.draw()).observe(this.stage);
  }

  /** Whether a query is chosen and its keys are shown. */
  get looking() {
    return this.state.direction !== "by";
  }

  get layer() {
    return this.captured;
  }

  /**
   * An axis: the one that a token is chosen on ("mine"), or the one whose weights are shown ("theirs").
   * @param {"mine" | "theirs"} which
   */
  axis(which) {
    const { layer, app, state } = this;
    /** @type {Axis} */
    const name = this.looking === (which === "mine") ? "queries" : "keys";
    const found = axisOf(app.meta, state.text, layer, name);
    return {
      name,
      list: layer[`${name}_of`],
      size: name === "queries" ? layer.rows : layer.cols,
      from: found?.from ?? 0,
      names: found?.tokens ?? [],
      layout: layoutOf(app.meta, state.text, layer, name),
    };
  }

  /** The token that is pinned, or -1. */
  get pinned() {
    const index = this.looking ? this.state.row : this.state.col;
    return index < 0 ? -1 : index + this.axis("mine").from;
  }

  /** The token whose attention is shown. */
  get token() {
    const { layout, from, size } = this.axis("mine");
    const wanted = this.pinned >= 0 ? this.pinned : this.at;
    return wanted >= from && wanted < from + size ? wanted : firstChoice(layout, from, size);
  }

  /** @param {() => boolean} fresh */
  async findWeights(fresh) {
    const { state, layer, layers, looking, token } = this;
    const [mine, theirs] = [this.axis("mine"), this.axis("theirs")];
    const ask = looking ? this.app.source.row : this.app.source.column;
    const weights = await weightsInScope(ask, state, layer, layers, token - mine.from);
    const heads = looking && isTower(layer) ? await this.app.source.layerHeads(state.text, layer.key) : [];
    if (!fresh()) return;
    this.outliers = outlierTokens(heads, theirs.from, state.scope === "head" ? state.head : undefined);
    const without = state.sink === "apart" && looking ? new Set(this.outliers.keys()) : new Set();
    const top = heatTop(weights, theirs.from, theirs.layout, without);
    this.heat = { token, weights, from: theirs.from, top };
    this.draw();
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.heads.show(state, layer, looking, token - mine.from), SOON);
  }

  draw() {
    const { heat, state, looking } = this;
    const [mine, theirs] = [this.axis("mine"), this.axis("theirs")];
    const same = mine.list === theirs.list;
    const apart = state.sink === "apart" && looking;
    for (const [number, picture] of this.pictures.entries()) {
      const { span } = picture;
      const values = new Float32Array(span.rows * span.cols);
      const place = (/** @type {number} */ token) => {
        const patch = patchOf(theirs.layout, token);
        return patch?.span === number ? patch.row * span.cols + patch.col : -1;
      };
      for (let i = 0; heat && i < span.tokens; i++)
        values[place(span.first + i)] = heat.weights[span.first + i - heat.from] ?? 0;
      const marked = [...this.outliers.keys()].map(place).filter((one) => one >= 0);
      const outliers = new Set(looking ? marked : []);
      picture.draw(heat ? values : null, {
        top: heat?.top ?? 1,
        scale: state.scale,
        colour: state.ground === "colour",
        marks: {
          ...NO_MARKS,
          chosen: same && heat ? place(heat.token) : -1,
          pointed: place(this.under >= 0 ? this.under : this.pinned < 0 ? this.at : -1),
          outliers,
          apart: apart ? outliers : new Set(),
        },
      });
    }
    this.tell();
  }

  /** Says in words and numbers what the picture shows. */
  tell() {
    const { heat, looking, state, layer } = this;
    if (!heat) return;
    const [mine, theirs] = [this.axis("mine"), this.axis("theirs")];
    const name = tokenName(mine, heat.token, 40);
    const verb = looking ? "attends to" : "is attended to by";
    const other = this.under;
    if (other >= 0 && other !== heat.token) {
      const weight = heat.weights[other - heat.from] ?? 0;
      this.said.textContent = `${name} ${verb} ${tokenName(theirs, other, 40)}: ${percent(weight)}`;
    } else {
      const { best } = strongest({ ...heat, without: -1 }, 3);
      const named = best.map(({ token, w }) => `${tokenName(theirs, token, 40)} (${percent(w)})`);
      this.said.textContent = `${name} ${verb} ${named.join(", ") || "nothing"}`;
    }
    const shown = layersInScope(this.layers, layer, state.scope);
    this.notes.show({ heat, layer, layers: shown, state, looking, mine, theirs, outliers: this.outliers });
    this.chips.paint(heat, mine.list === theirs.list, this.pinned);
  }

  /** @param {number} token */
  point(token) {
    if (this.pinned >= 0) {
      this.under = token;
      this.draw();
    } else if (token >= 0 && token !== this.at) {
      this.at = this.under = token;
      this.look();
    }
  }

  /** @param {number} token of the axis that tokens are chosen on */
  pin(token) {
    const { from, size } = this.axis("mine");
    if (token < from || token >= from + size) return;
    this.under = -1;
    this.at = token;
    this.app.set(this.looking ? { row: token - from, col: -1 } : { col: token - from, row: -1 });
  }

  /** @param {number} token */
  toggle(token) {
    if (token === this.pinned) this.app.set({ row: -1, col: -1 });
    else this.pin(token);
  }

  /**
   * The token of the patch that an event is about, on the axis that tokens are chosen on; -1 for none.
   * @param {MouseEvent} event
   */
  tokenOf(event) {
    const number = this.pictures.findIndex(({ canvas }) => canvas === event.target);
    const place = this.pictures[number]?.placeAt(event);
    if (!place) return -1;
    const patch = { span: number, ...place };
    const own = tokenOfPatch(this.axis("mine").layout, patch);
    return own >= 0 ? own : tokenOfPatch(this.axis("theirs").layout, patch);
  }

  listen() {
    const { stage } = this;
    stage.addEventListener("pointermove", (event) => {
      if (event.pointerType !== "touch") this.point(this.tokenOf(event));
    });
    stage.addEventListener("pointerleave", () => {
      this.under = -1;
      this.draw();
    });
    stage.addEventListener("click", (event) => {
      const token = this.tokenOf(event);
      if (token >= 0) this.toggle(token);
    });
    onKeys(stage, (key) => this.press(key));
  }

  /**
   * Does what a key asks for; says whether there was something to do.
   * @param {string} key
   */
  press(key) {
    const { layout } = this.axis("mine");
    const here = this.under >= 0 ? this.under : this.token;
    if (ARROWS[key]) {
      const [down, right] = ARROWS[key];
      const patch = patchOf(layout, here);
      const to = patch
        ? tokenOfPatch(layout, { ...patch, row: patch.row + down, col: patch.col + right })
        : middlePatch(layout);
      if (to >= 0) this.point(to);
    } else if (key === "Enter" || key === " ") this.toggle(here);
    else if (key === "Escape") this.app.set({ row: -1, col: -1 });
    else return false;
    return true;
  }

  /** @param {State} state */
  show(state) {
    this.state = state;
    const { layer } = this;
    this.controls.show(state, this.looking, this.layers, layer);
    const pictures = this.app.meta.texts[state.text].pictures;
    const [mine, theirs] = [this.axis("mine"), this.axis("theirs")];
    const name = `${state.text} ${mine.list} ${theirs.list} ${layer.rows} ${layer.cols} ${this.looking}`;
    if (name !== this.drawn) {
      this.drawn = name;
      this.at = this.under = -1;
      this.heat = null;
      const { spans } = theirs.layout.spans.length ? theirs.layout : mine.layout;
      this.pictures = spans.map((span) => new PictureCanvas(span, pictures?.images[span.picture] ?? null));
      this.stage.replaceChildren(...this.pictures.map(({ canvas }) => canvas));
      this.about.textContent = pictures?.about ?? "";
      const { meta } = this.app;
      this.chips.write(
        mine.names,
        otherTokens(meta, state.text, layer, mine.name),
        theirs.list === mine.list ? null : theirs.names,
        otherTokens(meta, state.text, layer, theirs.name),
      );
    }
    this.stage.hidden = !this.pictures.length;
    if (!this.pictures.length) {
      this.notes.clear();
      this.heads.clear();
      this.said.textContent = `The tokens of layer ${layer.key} are no patches of the picture: choose another layer.`;
      return;
    }
    this.look();
  }

  hide() {
    this.under = -1;
    clearTimeout(this.timer);
  }
}
