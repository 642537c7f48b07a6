// @ts-check
// A saved page that holds a model: the model reads texts, runs again with something cut, and generates, in the
// worker. `model/live_weights.js` is the other side.

import { TooLongError } from "./too_long.js";

/**
 * A source that also answers what needs a model.
 * @param {Source} source of the file
 * @param {import("./remote_weights.js").RemoteWeights["ask"]} ask
 * @returns {Source}
 */
export function withModel(source, ask) {
  let comparing = new AbortController(); // stops the comparison of a run with random heads
  const loading = parsed().then(() => ask("load", {}));
  loading.catch(() => {}); // whoever needs the model is told
  const can = { ...source.meta.can, capture: true, generate: true, cut: true };
  source.meta = { ...source.meta, can };

  /**
   * Takes a text under the number that the worker gave it.
   * @param {number} number
   * @param {TextMeta} text
   */
  const put = (number, text) => {
    const texts = [...source.meta.texts];
    // A text whose reading was stopped too late has a number, too, and nobody asks for it any more.
    for (let lost = texts.length; lost < number; lost++) {
      texts.push({ ...text, layers: [], edited: null, removed: true });
      ask("remove", { text: lost });
    }
    texts[number] = text;
    source.meta = { ...source.meta, texts };
  };
  /**
   * Compares an edited run with cuts in random heads, and says so on the page.
   * @param {number} text
   */
  const compare = async (text) => {
    comparing = new AbortController();
    const loss = await ask("randomLoss", { text }, comparing.signal);
    const { edited } = source.meta.texts[text];
    if (edited) edited.random = loss;
    dispatchEvent(new Event("regard-compared"));
  };
  /**
   * Waits for the model, which may still be on its way.
   * @param {(line: any) => void} onLine
   */
  const opened = async (onLine) => {
    onLine({ progress: { doing: "loading the model", done: 0, of: 1 } });
    await loading;
  };

  return Object.assign(source, {
    /** @type {Source["capture"]} */
    async capture(text, onLine, signal, { first = null, continuation = [] } = {}) {
      await opened(onLine);
      const answer = await ask("read", { text, first, continuation }, signal, onLine);
      if ("too_long" in answer) throw new TooLongError(answer.too_long);
      put(answer.number, answer.meta);
      return answer.number;
    },
    /** @type {Source["cut"]} */
    async cut(text, cuts, onLine, signal, random = true) {
      await opened(onLine);
      comparing.abort();
      const { number, meta } = await ask("cut", { text, cuts }, signal, onLine);
      const earlier = source.meta.texts.findIndex((one) => one.edited?.text === text);
      put(number, meta);
      if (earlier >= 0) put(earlier, await ask("remove", { text: earlier }));
      if (random) compare(number).catch(() => {}); // stopped by the next cut
      return number;
    },
    /** @type {Source["remove"]} */
    async remove(text) {
      comparing.abort();
      const { texts } = source.meta;
      const own = texts[text].edited?.text;
      const others = texts.flatMap((one, n) => (n === text || one.removed || one.edited ? [] : [n]));
      if (!others.length) throw new Error("This is the last text: read another one before you remove it.");
      const run = texts.findIndex((one) => one.edited?.text === text);
      if (run >= 0) put(run, await ask("remove", { text: run }));
      put(text, await ask("remove", { text }));
      return own ?? others[0];
    },
    /** @type {Source["generate"]} */
    async generate(options, onLine, signal) {
      await loading;
      await ask("generate", options, signal, onLine);
    },
  });
}

/** A promise that is kept once the whole file has been parsed: the model stands behind the script. */
function parsed() {
  if (document.readyState === "complete") return Promise.resolve();
  return new Promise((resolve) => addEventListener("load", resolve, { once: true }));
}
