// @ts-check
// Which keys a query of a causal layer sees: all up to its own or the latest in a window, less the edges that are cut.

/**
 * The stretches of keys that a query sees, one after another: [from, before, from, before …].
 * @param {number | null} window latest keys, the query's own among them
 * @param {EdgeCut[]} cuts of the layer
 * @param {number} head
 * @param {number} query
 * @returns {number[]}
 */
export function visibleKeys(window, cuts, head, query) {
  let stretches = [window === null ? 0 : Math.max(0, query + 1 - window), query + 1];
  for (const { head: own, queries, keys } of cuts) {
    if ((own !== null && own !== head) || query < queries[0] || query >= queries[1]) continue;
    stretches = without(stretches, keys[0], keys[1]);
  }
  return stretches;
}

/**
 * Stretches less the keys `first` to before `end`.
 * @param {number[]} stretches
 * @param {number} first
 * @param {number} end
 */
function without(stretches, first, end) {
  const left = [];
  for (let n = 0; n < stretches.length; n += 2) {
    const [from, to] = [stretches[n], stretches[n + 1]];
    if (from < Math.min(to, first)) left.push(from, Math.min(to, first));
    if (Math.max(from, end) < to) left.push(Math.max(from, end), to);
  }
  return left;
}

/**
 * The same for T queries as the arrays of a mask: of one head if all heads see alike, else of each.
 * @param {number | null} window
 * @param {EdgeCut[]} cuts of the layer
 * @param {number} heads
 * @param {number} T
 */
export function maskArrays(window, cuts, heads, T) {
  const alike = cuts.every(({ head }) => head === null);
  const offsets = [0];
  /** @type {number[]} */
  const ranges = [];
  for (let head = 0; head < (alike ? 1 : heads); head++) {
    for (let query = 0; query < T; query++) {
      for (const edge of visibleKeys(window, cuts, head, query)) ranges.push(edge);
      offsets.push(ranges.length / 2);
    }
  }
  return { offsets: Uint32Array.from(offsets), ranges: Uint32Array.from(ranges) };
}
