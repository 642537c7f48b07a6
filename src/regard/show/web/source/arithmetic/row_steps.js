// @ts-check
// The whole computation of one row of attention, step by step, from one head's arrays.
// The server computes the same in Python.

/**
 * q, some keys with their scores at every step, and the output.
 * @param {Head} head
 * @param {Float32Array | null} v
 * @param {Layer} about
 * @param {number} row
 * @param {number} strongest keys that are shown, besides the first and the nearest
 * @returns {RowSteps}
 */
export function rowSteps(head, v, about, row, strongest) {
  const { T, S, D } = head;
  const weights = head.row(row);
  const position = row + S - T;
  const chosen = new Set([0, Math.min(Math.max(position, 0), S - 1)]);
  const order = [...weights.keys()].sort((a, b) => weights[b] - weights[a] || a - b);
  for (const j of order.slice(0, strongest)) chosen.add(j);
  const E = about.value_width ?? 0;
  const q = Array.from(head.q.subarray(row * D, (row + 1) * D));
  const keys = [...chosen]
    .sort((a, b) => a - b)
    .map((j) => {
      const k = Array.from(head.k.subarray(j * D, (j + 1) * D), (x, d) => x + head.mean[d]);
      const score = q.reduce((sum, x, d) => sum + x * k[d], 0);
      const scaled = score * head.scale;
      const capped = head.softcap ? head.softcap * Math.tanh(scaled / head.softcap) : scaled;
      const added = head.relative ? head.relative[j - row + T - 1] : head.dense ? head.dense[row * S + j] : 0;
      let visible = false;
      head.stretches(row, j, j + 1, () => (visible = true));
      return {
        key: j,
        k,
        score,
        scaled,
        capped,
        added,
        visible,
        weight: weights[j],
        v: v ? Array.from(v.subarray(j * E, (j + 1) * E)) : null,
      };
    });
  let visible = 0;
  head.stretches(row, 0, S, (from, to) => (visible += to - from));
  const output = v ? weightedSum(weights, v, E) : null;
  const toMean = q.reduce((sum, x, d) => sum + x * head.mean[d], 0) * head.scale;
  return {
    row,
    position,
    q,
    keys,
    output,
    visible,
    lse: Number.isFinite(head.lse[row]) ? head.lse[row] + toMean : null,
    sum: weights.reduce((a, b) => a + b, 0),
    scale: head.scale,
    softcap: head.softcap,
    shapes: { T, S, D, E: v ? E : null, H: about.heads.length, G: about.kv_heads },
  };
}

/**
 * Every value times its weight, added up.
 * @param {Float32Array} weights S of them
 * @param {Float32Array} v (S · E)
 * @param {number} E
 */
function weightedSum(weights, v, E) {
  /** @type {number[]} */
  const output = new Array(E).fill(0);
  weights.forEach((weight, j) => {
    if (weight) for (let e = 0; e < E; e++) output[e] += weight * v[j * E + e];
  });
  return output;
}
