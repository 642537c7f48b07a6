// @ts-check
// One row or one column of a head: a token's, or that of a word or a sentence, over words or sentences.

/**
 * What the units along an axis have together, from what each token has.
 * @param {Float32Array} line
 * @param {number[] | null} edges of the units, or null for tokens
 * @param {boolean} mean divided by their numbers of tokens
 */
function added(line, edges, mean) {
  if (!edges) return line;
  return Float32Array.from({ length: edges.length - 1 }, (_, unit) => {
    const [first, last] = [edges[unit], edges[unit + 1]];
    let sum = 0;
    for (let token = first; token < last; token++) sum += line[token];
    return mean ? sum / (last - first) : sum;
  });
}

/**
 * The tokens of a unit: the first, and where it ends.
 * @param {number[] | null} edges
 * @param {number} unit
 */
function tokensOf(edges, unit) {
  return edges ? [edges[unit], edges[unit + 1]] : [unit, unit + 1];
}

/**
 * What a query, or the queries of a unit on average, give to each key or to the keys of each unit.
 * @param {HeadMap} head
 * @param {number} index
 * @param {TileParts} parts
 */
export function rowOf(head, index, { factors = null, queries = null, keys = null }) {
  const [first, last] = tokensOf(queries, index);
  const total = new Float32Array(head.S);
  for (let query = first; query < last; query++)
    head.row(query).forEach((w, key) => (total[key] += (w * (factors ? factors[key] : 1)) / (last - first)));
  return added(total, keys, false);
}

/**
 * What a key, or the keys of a unit together, get from each query or from the queries of each unit on average.
 * @param {HeadMap} head
 * @param {number} index
 * @param {TileParts} parts
 */
export function columnOf(head, index, { factors = null, queries = null, keys = null }) {
  const [first, last] = tokensOf(keys, index);
  const total = new Float32Array(head.T);
  for (let key = first; key < last; key++)
    head.column(key).forEach((w, query) => (total[query] += w * (factors ? factors[key] : 1)));
  return added(total, queries, true);
}
