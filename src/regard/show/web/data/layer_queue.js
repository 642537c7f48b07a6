// @ts-check
// Something of every layer, fetched a few at a time: of the layer that the reader looks at first, then of its
// neighbours. It can be stopped and go on. It knows no source.

const AT_ONCE = 2; // so that the next question is there when an answer leaves

/**
 * The layer among `left` that is nearest to a chosen one in the list of all, the later one if two are.
 * @param {string[]} all
 * @param {Set<string>} left
 * @param {string} chosen
 * @returns {string | undefined}
 */
export function nearestLayer(all, left, chosen) {
  const at = Math.max(0, all.indexOf(chosen));
  const far = (/** @type {string} */ key) => Math.abs(all.indexOf(key) - at - 0.1);
  return [...left].sort((a, b) => far(a) - far(b))[0];
}

export class LayerQueue {
  /**
   * @param {(layer: string) => Promise<void>} fetch
   * @param {(queue: LayerQueue) => void} tell called at the start, after each layer, and when it is stopped or goes on
   */
  constructor(fetch, tell) {
    this.fetch = fetch;
    this.tell = tell;
    /** @type {string[]} */
    this.layers = [];
    /** @type {Set<string>} */
    this.left = new Set();
    this.chosen = ""; // comes first, and may change
    this.done = 0;
    this.running = 0;
    this.stopped = false;
    this.round = 0; // of questions: those of an earlier list do not count any more
  }

  /**
   * Begins with a list of layers, in place of an earlier one.
   * @param {string[]} layers
   * @param {string} chosen
   */
  start(layers, chosen) {
    Object.assign(this, { layers, left: new Set(layers), chosen, done: 0, running: 0, stopped: false });
    this.round++;
    this.tell(this);
    this.next();
  }

  /** How many layers there are. */
  get of() {
    return this.layers.length;
  }

  stop() {
    this.stopped = true;
    this.tell(this);
  }

  resume() {
    this.stopped = false;
    this.tell(this);
    this.next();
  }

  next() {
    while (!this.stopped && this.running < AT_ONCE && this.left.size) {
      const layer = /** @type {string} */ (nearestLayer(this.layers, this.left, this.chosen));
      this.left.delete(layer);
      this.running++;
      this.fetchOne(layer, this.round);
    }
  }

  /**
   * @param {string} layer
   * @param {number} round
   */
  async fetchOne(layer, round) {
    await this.fetch(layer);
    if (round !== this.round) return;
    this.running--;
    this.done++;
    this.tell(this);
    this.next();
  }
}
