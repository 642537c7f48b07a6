// @ts-check
// What the model expects after each token of a text: the likeliest tokens, what it gave the one that follows, and a token
// to go on with.

const ROUNDING = 1e-6; // of a probability: a file's are PyTorch's, in single precision

/** Next-token predictions at T positions, filled in from logits. */
export class Predictions {
  /**
   * @param {ArrayLike<number>} ids of the text
   * @param {number} likeliest tokens that are kept for each position
   */
  constructor(ids, likeliest) {
    const T = ids.length;
    this.ids = ids;
    this.kept = likeliest;
    this.tokens = new Uint32Array(T * likeliest);
    this.probabilities = new Float32Array(T * likeliest);
    this.losses = new Float64Array(Math.max(0, T - 1));
    this.ranks = new Uint32Array(Math.max(0, T - 1));
  }

  /**
   * Takes the logits of some positions.
   * @param {number} first position
   * @param {number} rows
   * @param {WideMatrix} logits (rows, V)
   */
  take(first, rows, { data, at, step }) {
    for (let row = 0; row < rows; row++) {
      const logits = data.subarray(at + row * step, at + (row + 1) * step);
      const lse = logSumExp(logits);
      const best = largest(logits, this.kept);
      best.forEach((id, n) => {
        this.tokens[(first + row) * this.kept + n] = id;
        this.probabilities[(first + row) * this.kept + n] = Math.exp(logits[id] - lse);
      });
      if (first + row < this.losses.length) {
        const own = logits[this.ids[first + row + 1]];
        this.losses[first + row] = lse - own;
        this.ranks[first + row] = 1 + logits.reduce((higher, x) => higher + (x > own ? 1 : 0), 0);
      }
    }
  }

  /**
   * The token that is meant after a position; -1 is the likeliest.
   * @param {number} position
   * @param {number} token
   */
  named(position, token) {
    return token < 0 ? this.tokens[position * this.kept] : token;
  }

  /** In a few numbers, as a text's meta has them. */
  summary() {
    const count = this.losses.length;
    const loss = count ? this.losses.reduce((a, b) => a + b, 0) / count : null;
    return { loss, tokens: count, likeliest: this.kept };
  }
}

/**
 * How two runs on the same tokens differ: the mean loss of both, and the tokens that changed the most.
 * @param {ArrayLike<number>} before losses
 * @param {ArrayLike<number>} after
 * @param {number} most tokens that are listed
 * @returns {Changes}
 */
export function changes(before, after, most) {
  const mean = (/** @type {ArrayLike<number>} */ losses) =>
    losses.length ? Array.from(losses).reduce((a, b) => a + b, 0) / losses.length : null;
  const all = Array.from(before, (loss, position) => ({
    position: position + 1,
    before: Math.exp(-loss),
    after: Math.exp(-after[position]),
  }));
  const change = (/** @type {typeof all[number]} */ one) => Math.abs(one.after - one.before);
  const strongest = all.sort((a, b) => change(b) - change(a)).slice(0, most);
  return {
    before: mean(before),
    after: mean(after),
    most: strongest.filter((one) => change(one) > ROUNDING),
  };
}

/** @param {Float64Array} x */
export function logSumExp(x) {
  const most = x.reduce((a, b) => Math.max(a, b), -Infinity);
  return most + Math.log(x.reduce((sum, value) => sum + Math.exp(value - most), 0));
}

/**
 * The places of the `count` largest numbers, the largest first.
 * @param {Float64Array} x
 * @param {number} count
 */
export function largest(x, count) {
  /** @type {number[]} */
  const best = [];
  for (let n = 0; n < x.length; n++) {
    if (best.length === count && x[n] <= x[best[count - 1]]) continue;
    let at = best.length;
    while (at > 0 && x[best[at - 1]] < x[n]) at--;
    best.splice(at, 0, n);
    if (best.length > count) best.pop();
  }
  return best;
}

/**
 * The likeliest token at temperature 0; otherwise a random draw from softmax(logits / temperature).
 * @param {Float64Array} logits
 * @param {number} temperature
 * @param {() => number} random from 0 to below 1
 */
export function sampleToken(logits, temperature, random = Math.random) {
  if (temperature === 0) return largest(logits, 1)[0];
  const scaled = logits.map((x) => x / temperature);
  const lse = logSumExp(scaled);
  let left = random();
  let last = 0; // the last token with a probability, for rounding
  for (let id = 0; id < scaled.length; id++) {
    const probability = Math.exp(scaled[id] - lse);
    if (probability > 0) last = id;
    left -= probability;
    if (left < 0) return id;
  }
  return last;
}
