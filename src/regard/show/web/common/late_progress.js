// @ts-check
// A progress panel that shows itself only if the reader has to wait.

import { ProgressPanel } from "./progress_panel.js";

export const UNNOTICED = 400; // milliseconds that pass before a reader wants to know

export class LateProgress extends ProgressPanel {
  /** @param {string} kind */
  constructor(kind) {
    super(kind);
    /** @type {ReturnType<typeof setTimeout> | null} */
    this.timer = null;
    this.latest = () => {};
    this.hide();
  }

  /**
   * Shows progress as `show` does, once it has lasted a moment.
   * @param {Parameters<ProgressPanel["show"]>} progress
   */
  follow(...progress) {
    this.latest = () => this.show(...progress);
    if (!this.box.hidden) this.latest();
    else
      this.timer ??= setTimeout(() => {
        this.timer = null;
        this.latest();
      }, UNNOTICED);
  }

  hide() {
    super.hide();
    if (this.timer !== null) clearTimeout(this.timer);
    this.timer = null;
  }
}
