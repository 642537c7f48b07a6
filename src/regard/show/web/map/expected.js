// @ts-check
// Which keys a kind of head is expected to attend to, told from the tokens alone: what induction, previous token,
// duplicate and sink predict. It counts as the scores in Python do (`induction.py`); it knows nothing of weights.

export const KINDS = /** @type {const} */ (["induction", "previous_token", "duplicate", "sink"]);

/** @typedef {typeof KINDS[number]} ExpectedKind */

/** @type {Record<ExpectedKind, string>} */
export const OUTLINED = {
  induction: "the tokens that came after earlier copies of each query’s token",
  previous_token: "the token before each query",
  duplicate: "the earlier copies of each query’s token",
  sink: "the key that receives the most",
};

/** The columns that are expected of a row, increasing. @typedef {(row: number) => number[]} ExpectedColumns */

/**
 * What a kind of head predicts on a layer; null if it cannot be told.
 * @param {string} kind
 * @param {TextMeta} text
 * @param {Layer} layer
 * @param {number | null | undefined} sinkKey of the head
 * @returns {ExpectedColumns | null}
 */
export function expectedColumns(kind, text, layer, sinkKey) {
  if (layer.units || layer.stack === "cross") return null;
  const first = firstPositions(layer);
  /** @type {(query: number, keys: number[]) => number[]} the columns of those keys that the layer's window shows */
  const columns = (query, keys) =>
    keys
      .filter((key) => key >= first.key && !(layer.window && query - key >= layer.window))
      .map((key) => key - first.key);
  if (kind === "sink") {
    if (sinkKey === null || sinkKey === undefined) return null;
    const key = sinkKey + first.key;
    return (row) =>
      layer.mask !== "full" && key > row + first.query ? [] : columns(row + first.query, [key]);
  }
  if (kind === "previous_token") return (row) => columns(row + first.query, [row + first.query - 1]);
  const copies = layer.queries_from === null ? null : text.copies[layer.queries_of];
  if (!copies) return null;
  const groups = copyGroups(copies);
  const step = kind === "induction" ? 1 : 0;
  return (row) => {
    const query = row + first.query;
    const keys = (groups.get(copies[query]) ?? []).map((place) => place + step);
    return columns(
      query,
      keys.filter((key) => key < query),
    );
  };
}

/**
 * Where the layer's queries and keys begin, on one list of tokens; the last query is at the last key.
 * @param {Layer} layer
 */
function firstPositions({ rows, cols, queries_from: queries, keys_from: keys }) {
  return queries === null || keys === null ? { query: cols - rows, key: 0 } : { query: queries, key: keys };
}

/**
 * The positions of each group of equal tokens, increasing, by the first of them.
 * @param {number[]} copies
 */
function copyGroups(copies) {
  /** @type {Map<number, number[]>} */
  const groups = new Map();
  copies.forEach((first, place) => {
    const group = groups.get(first);
    if (group) group.push(place);
    else groups.set(first, [place]);
  });
  return groups;
}

/**
 * What stands beside the outlined map: what is outlined, and how much attention goes there, here and on random tokens.
 * @param {ExpectedKind} kind
 * @param {HeadScores | undefined} row
 * @param {HeadScores | undefined} onRepeats
 * @param {(share: number) => string} say
 */
export function outlineNote(kind, row, onRepeats, say) {
  /** @type {(one: Score | undefined) => string} */
  const share = (one) => {
    if (one?.value === null || one?.value === undefined) return "";
    const uniform = one.null === null || one.null === undefined ? "" : `, uniform attention ${say(one.null)}`;
    return `${say(one.value)}${uniform}`;
  };
  const here = share(row?.scores[kind]);
  const repeats = share(onRepeats?.scores[kind]);
  return [
    `Outlined: ${OUTLINED[kind]}.`,
    here && `Attention there on this text: ${here}.`,
    repeats && `On random tokens, repeated: ${repeats}.`,
  ]
    .filter(Boolean)
    .join(" ");
}
