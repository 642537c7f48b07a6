// @ts-check
// What every head of a layer does with the chosen token: a small picture for each, which chooses the head.

import { latest } from "../parts/controls.js";
import { element, makeButton } from "../parts/dom.js";
import { percent } from "../data/format.js";
import { layoutOf, patchOf } from "../data/patch_layout.js";
import { axisOf } from "../data/tokens.js";
import { heatTop } from "./patches.js";
import { NO_MARKS, PictureCanvas } from "./picture_canvas.js";

const MOST = 32; // heads

/** The small pictures of one layer's heads. */
export class HeadPictures {
  /** @param {App} app */
  constructor(app) {
    this.app = app;
    this.list = element("div", { class: "head-pictures" });
    this.title = element("h3");
    this.box = element("section", { class: "heads-of-layer", hidden: true }, this.title, this.list);
    this.made = ""; // for which layer
    /** @type {{ head: number, picture: PictureCanvas, button: HTMLButtonElement, share: HTMLElement }[]} */
    this.small = [];
    this.show = latest(this.fill.bind(this));
  }

  clear() {
    this.box.hidden = true;
  }

  /**
   * @param {() => boolean} fresh
   * @param {State} state
   * @param {Layer} layer
   * @param {boolean} looking
   * @param {number} index of the token on its axis
   */
  async fill(fresh, state, layer, looking, index) {
    const { meta, source } = this.app;
    /** @type {Axis} */
    const axis = looking ? "keys" : "queries";
    const layout = layoutOf(meta, state.text, layer, axis);
    const from = axisOf(meta, state.text, layer, axis)?.from ?? 0;
    this.box.hidden = layer.heads.length < 2 || !layout.spans.length;
    if (this.box.hidden) return;
    this.make(state, layer, layout.spans[0], axis);
    this.title.textContent = `The heads of layer ${layer.key}`;
    const ask = looking ? source.row : source.column;
    for (const { head, picture, button, share } of this.small) {
      const weights = await ask(state.text, layer.key, head, index);
      if (!fresh()) return;
      const { span } = picture;
      const values = new Float32Array(span.rows * span.cols);
      let total = 0;
      for (let token = span.first; token < span.first + span.tokens; token++) {
        const patch = patchOf(layout, token);
        const weight = weights[token - from] ?? 0;
        if (patch) values[patch.row * span.cols + patch.col] = weight;
        total += weight;
      }
      const top = heatTop(weights, from, layout, new Set());
      const look = { top, scale: state.scale, colour: state.ground === "colour", marks: NO_MARKS };
      picture.draw(values, look);
      button.setAttribute("aria-pressed", String(state.scope === "head" && head === state.head));
      share.textContent = looking ? `${percent(total)} on patches` : "";
    }
  }

  /**
   * @param {State} state
   * @param {Layer} layer
   * @param {PatchSpan} span
   * @param {Axis} axis
   */
  make(state, layer, span, axis) {
    const name = `${state.text} ${layer.key} ${axis}`;
    if (name === this.made) return;
    this.made = name;
    const picture = this.app.meta.texts[state.text].pictures?.images[span.picture] ?? null;
    this.small = layer.heads.slice(0, MOST).map((head) => {
      const canvas = new PictureCanvas(span, picture);
      const share = element("span", { class: "quiet" });
      const choose = () => this.app.set({ head, scope: "head" });
      const parts = [canvas.canvas, element("span", { text: `head ${head}` }), share];
      const button = makeButton("", choose, { class: "head-picture" }, ...parts);
      return { head, picture: canvas, button, share };
    });
    this.list.replaceChildren(...this.small.map(({ button }) => button));
  }
}
