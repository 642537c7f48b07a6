// @ts-check
// What every head of a layer does with the chosen token: a small picture for each, which chooses the head.

import { latest } from "../parts/controls.js";
import { contextOf, element, makeButton } from "../parts/dom.js";
import { percent } from "../data/format.js";
import { patchOf } from "../data/patch_layout.js";
import { heatColour } from "./heat.js";
import { pictureBox } from "./patch_fields.js";

const MOST = 32; // heads
const SOON = 150; // milliseconds after which they follow the chosen token

/** @typedef {{ head: number, button: HTMLButtonElement, heat: HTMLCanvasElement, share: HTMLElement }} SmallPicture */

export class HeadPictures {
  /** @param {App} app */
  constructor(app) {
    this.app = app;
    this.title = element("h3");
    this.list = element("div.head-pictures");
    this.box = element("section.heads-of-layer", { hidden: true }, this.title, this.list);
    this.made = ""; // for which layer
    /** @type {SmallPicture[]} */
    this.small = [];
    this.show = latest(this.fill.bind(this));
  }

  /**
   * @param {() => boolean} fresh
   * @param {State} state
   * @param {Layer} layer
   * @param {PatchLayout} layout of the other tokens; without patches there are no pictures
   * @param {boolean} looking
   * @param {number} index of the token on its axis
   * @param {number} from the first of the other tokens
   */
  async fill(fresh, state, layer, layout, looking, index, from) {
    const [span] = layout.spans;
    this.box.hidden = !span || layer.heads.length < 2;
    if (this.box.hidden) return;
    this.make(state, layer, span);
    await new Promise((go) => setTimeout(go, SOON));
    for (const { head, button, heat, share } of this.small) {
      button.setAttribute("aria-pressed", String(state.scope === "head" && head === state.head));
      if (!fresh()) return;
      const { source } = this.app;
      const weights = await (looking ? source.row : source.column)(state.text, layer.key, head, index);
      if (!fresh()) return;
      const shares = Array.from({ length: span.tokens }, (_, n) => weights[span.first + n - from] ?? 0);
      const top = Math.max(3 / Math.max(3, weights.length), ...shares); // uniform attention stays pale
      const context = contextOf(heat);
      context.clearRect(0, 0, heat.width, heat.height);
      shares.forEach((weight, n) => {
        const patch = patchOf(layout, span.first + n);
        context.fillStyle = heatColour(weight / top);
        if (patch) context.fillRect(patch.col, patch.row, 1, 1);
      });
      const total = shares.reduce((sum, weight) => sum + weight, 0);
      share.textContent = looking ? `${percent(total)} on patches` : "";
    }
  }

  /**
   * @param {State} state
   * @param {Layer} layer
   * @param {PatchSpan} span
   */
  make(state, layer, span) {
    const name = `${state.text} ${layer.key}`;
    if (name === this.made) return;
    this.made = name;
    this.title.textContent = `The heads of layer ${layer.key}`;
    const picture = this.app.meta.texts[state.text].pictures?.images[span.picture] ?? null;
    this.small = layer.heads.slice(0, MOST).map((head) => {
      const heat = element("canvas.ground.small", { width: span.cols, height: span.rows });
      const shown = pictureBox(span, picture);
      shown.append(heat);
      const share = element("span.quiet");
      const choose = () => this.app.set({ head, scope: "head" });
      const words = element("span", `head ${head}`);
      const button = makeButton("", choose, { class: "head-picture" }, shown, words, share);
      return { head, button, heat, share };
    });
    this.list.replaceChildren(...this.small.map(({ button }) => button));
  }
}
