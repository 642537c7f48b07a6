// @ts-check
// What is being done and how far it is, with a button to cancel: it looks the same wherever the reader has to wait.

import { element, makeButton } from "./dom.js";

const LEAST_DONE = 0.05; // the share from which the rest can be estimated
const LEAST_LEFT = 3; // seconds worth mentioning
const UNNOTICED = 400; // milliseconds that pass before a reader wants to know

/**
 * How much longer something takes, in words; "" where nothing can be said.
 * @param {number} seconds since it began
 * @param {number} share that is done
 */
export function timeLeft(seconds, share) {
  if (share < LEAST_DONE || share >= 1) return "";
  const left = (seconds / share) * (1 - share);
  if (left < LEAST_LEFT) return "";
  return left < 90 ? `about ${Math.ceil(left / 5) * 5} s left` : `about ${Math.round(left / 60)} min left`;
}

/** A line of words, a bar and a button; hidden until there is something to show. */
export class ProgressPanel {
  /** @param {string} kind a class for how it is placed */
  constructor(kind) {
    this.words = element("p.progress-words");
    this.bar = element("progress", { max: "1" });
    this.button = makeButton("Cancel", () => this.cancel(), { hidden: true });
    this.box = element("div", { class: `progress-panel ${kind}` }, this.words, this.bar, this.button);
    this.box.setAttribute("role", "status");
    /** @type {ReturnType<typeof setTimeout> | null} */
    this.timer = null;
    this.latest = () => {};
    this.what = ""; // that is being done
    this.began = 0;
    /** @type {() => void} */
    this.cancel = () => {};
    this.hide();
  }

  /**
   * Shows what is done. Without a total the bar only says that something is.
   * @param {string} what as "Reading the text"
   * @param {{ done?: number, of?: number, unit?: string, cancel?: () => void }} [progress] `unit` as "layers"
   */
  show(what, { done = 0, of = 0, unit = "", cancel } = {}) {
    const now = performance.now() / 1000;
    if (what !== this.what || !done) this.began = now;
    this.what = what;
    const count = of ? `${done} of ${of} ${unit}`.trim() : "";
    const left = of ? timeLeft(now - this.began, done / of) : "";
    this.words.textContent = count ? [`${what}: ${count}`, left].filter(Boolean).join(", ") : `${what}…`;
    if (of) this.bar.value = done / of;
    else this.bar.removeAttribute("value");
    this.bar.setAttribute("aria-label", what);
    this.bar.hidden = false;
    this.button.hidden = !cancel;
    this.button.textContent = "Cancel";
    this.cancel = cancel ?? this.cancel;
    this.box.hidden = false;
  }

  /**
   * Says that it was cancelled, and offers to go on.
   * @param {string} words
   * @param {() => void} again
   */
  offer(words, again) {
    this.words.textContent = words;
    this.what = "";
    this.bar.hidden = true;
    this.button.hidden = false;
    this.button.textContent = "Go on";
    this.cancel = again;
    this.box.hidden = false;
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

  /**
   * Follows work that can be stopped and go on.
   * @param {{ done: number, of: number, stopped: boolean, stop(): void, resume(): void }} work
   * @param {string} doing as "Scoring the heads"
   * @param {string} units as "layers"
   * @param {string} [things] that are missing of those which are not done, as "the scores of "
   */
  followWork(work, doing, units, things = "") {
    const { done, of, stopped } = work;
    const missing = `Stopped: ${things}${of - done} of ${of} ${units} are missing.`;
    if (done === of) this.hide();
    else if (stopped) this.offer(missing, () => work.resume());
    else this.follow(doing, { done, of, unit: units, cancel: () => work.stop() });
  }

  hide() {
    this.box.hidden = true;
    this.what = "";
    if (this.timer !== null) clearTimeout(this.timer);
    this.timer = null;
  }
}
