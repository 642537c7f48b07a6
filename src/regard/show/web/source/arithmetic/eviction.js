// @ts-check
// The eviction loss of every head, from the arrays of a saved page. It equals what eviction.py computes.

/**
 * Sizes of a window worth trying on S keys: 4, 6, 8, 12, 16, 24 … below S.
 * @param {number} S
 */
function windows(S) {
  /** @type {number[]} */
  const sizes = [];
  for (let size = 4; size < S; size *= 2) {
    sizes.push(size);
    if (size * 1.5 < S) sizes.push(size * 1.5);
  }
  return sizes;
}

/**
 * What eviction loses of a linear layer's heads: they keep no keys, and lose none.
 * @param {number} heads
 * @param {number} S
 * @param {number[]} sinks the numbers of first keys that are kept
 * @returns {Eviction}
 */
export function noEviction(heads, S, sinks) {
  const sizes = windows(S);
  const lost = Array.from({ length: heads }, () => sizes.map(() => sinks.map(() => null)));
  return { windows: sizes, sinks, lost, queries: 0, ahead: false };
}

/**
 * For each head of a layer, window and number of first keys that are kept: the mean loss, or null.
 * @param {HeadMap[]} heads
 * @param {{ queries: number, sinks: number[] }} options the most queries to look at, and the numbers of first keys
 * @param {Pause} [pause]
 * @returns {Promise<Eviction>}
 */
export async function evictionOf(heads, { queries, sinks: kept }, pause = async () => {}) {
  const { T, S } = heads[0];
  const sizes = windows(S);
  const count = Math.min(T, queries);
  const rows = Array.from({ length: count }, (_, n) =>
    T > queries ? Math.floor(((2 * n + 1) * T) / (2 * count)) : n,
  );
  const mass = new Float64Array(S + 1); // of the keys before each
  const keys = new Int32Array(S + 1);
  const lost = [];
  let ahead = false;
  for (const head of heads) {
    const sums = sizes.map(() => new Float64Array(kept.length));
    const counts = sizes.map(() => new Int32Array(kept.length));
    for (const row of rows) {
      const place = row + S - T;
      mass.fill(0);
      keys.fill(0);
      head.visible(row, 0, S, (j, weight) => {
        mass[j + 1] = weight;
        keys[j + 1] = 1;
        ahead ||= j > place;
      });
      for (let j = 0; j < S; j++) {
        mass[j + 1] += mass[j];
        keys[j + 1] += keys[j];
      }
      sizes.forEach((size, w) =>
        kept.forEach((sinks, s) => {
          const first = Math.min(sinks, S);
          const end = Math.min(S, Math.max(first, place + 1 - size));
          if (keys[end] === keys[first]) return;
          sums[w][s] += mass[end] - mass[first];
          counts[w][s] += 1;
        }),
      );
      await pause();
    }
    lost.push(sums.map((row, w) => Array.from(row, (sum, s) => (counts[w][s] ? sum / counts[w][s] : null))));
  }
  return { windows: sizes, sinks: kept, lost, queries: count, ahead };
}
