// @ts-check
// Whether a layer's map gives what the model went on with: its weights times the values, on some rows.

import { count } from "../data/format.js";

const ALLOWED = 1e-4; // of the difference; keys and values are kept in single precision
const ROWS_ALLOWED = 1e-4; // of the sum of a row

/**
 * @param {HeadMap[]} heads of a layer
 * @param {Float32Array} values (G · S · D)
 * @param {LayerRecord["sampled"]} sampled
 * @param {Set<number | null>} cut heads whose output was replaced by zeros
 * @param {string} mask
 * @returns {Evidence}
 */
export function compareOutputs(heads, values, sampled, cut, mask) {
  const { S, D, T } = heads[0];
  const group = heads.length / (values.length / (S * D));
  let [difference, sums] = [0, 0];
  for (const { row, output } of sampled) {
    heads.forEach((head, h) => {
      const weights = head.row(row);
      const total = weights.reduce((a, b) => a + b, 0);
      if (head.offsets[row + 1] > head.offsets[row]) sums = Math.max(sums, Math.abs(total - 1));
      if (cut.has(h)) return;
      for (let d = 0; d < D; d++) {
        let sum = 0;
        for (let j = 0; j < S; j++) sum += weights[j] * values[(Math.floor(h / group) * S + j) * D + d];
        difference = Math.max(difference, Math.abs(sum - output[h * D + d]));
      }
    });
  }
  const certified = difference <= ALLOWED && sums <= ROWS_ALLOWED;
  const replaced = cut.size ? `; an edit then replaced the output of head ${[...cut].join(", ")}` : "";
  return {
    certified,
    text:
      `${certified ? "" : "not "}certified: weights times values are within ${difference.toExponential(1)} of this ` +
      `layer's own attention output${replaced}; ${count(sampled.length)} of ${count(T)} rows compared, in this page; ${mask}`,
    problem: null,
    difference,
    allowed: ALLOWED,
    row_sums: sums,
    rows: sampled.length,
    of: T,
  };
}
