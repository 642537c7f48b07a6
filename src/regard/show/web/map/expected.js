// @ts-check
// Which keys a kind of head is expected to attend to, told from the tokens alone: what induction, previous token,
// duplicate and sink predict, as the scores in Python count it (`induction.py`), and its outline on the map. Far from the
// map, a cell of several tokens is outlined if one of its weights is expected; where that would be most cells, none is.

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

const SMALLEST = 2; // pixels of an outlined cell
const MOST = 0.2; // of the cells in view that may be outlined
const LARGE = 10; // pixels from which the line is drawn on the edge of the cell, not around it

/** @typedef {{ size: number, cells: [number, number][], has: (i: number, j: number) => boolean }} OutlinedCells */

/** The expected cells of one head; what was found for a level is kept. */
export class ExpectedOutline {
  /**
   * @param {ExpectedColumns} columns
   * @param {Pick<Layer, "rows" | "cols">} layer
   */
  constructor(columns, { rows, cols }) {
    this.columns = columns;
    this.rows = rows;
    this.cols = cols;
    this.size = 0; // of the cells of `coarse`
    this.coarse = new Uint8Array(0); // 1 for each cell of the whole map with something expected
  }

  /**
   * The cells to outline of what the camera sees; null where they would cover the map.
   * @param {Pick<import("./camera.js").Camera, "frame" | "zoom">} camera
   * @returns {OutlinedCells | null}
   */
  within({ frame, zoom }) {
    const size = 2 ** Math.max(0, Math.ceil(Math.log2(SMALLEST / zoom)));
    /** @type {(from: number, to: number, all: number) => [number, number]} */
    const span = (from, to, all) => [
      Math.max(0, Math.floor(from / size)),
      Math.min(Math.ceil(all / size), Math.ceil(to / size)),
    ];
    const [top, bottom] = span(frame.top, frame.bottom, this.rows);
    const [left, right] = span(frame.left, frame.right, this.cols);
    const has = size === 1 ? this.single(top, bottom) : this.pooled(size);
    /** @type {[number, number][]} */
    const cells = [];
    for (let i = top; i < bottom; i++) for (let j = left; j < right; j++) if (has(i, j)) cells.push([i, j]);
    if (size > 1 && cells.length > MOST * (bottom - top) * (right - left)) return null;
    return { size, cells, has };
  }

  /**
   * Whether single weights are expected, for some rows and those beside them.
   * @param {number} top
   * @param {number} bottom
   */
  single(top, bottom) {
    /** @type {Map<number, Set<number>>} */
    const rows = new Map();
    for (let row = Math.max(0, top - 1); row < Math.min(this.rows, bottom + 1); row++)
      rows.set(row, new Set(this.columns(row)));
    return (/** @type {number} */ i, /** @type {number} */ j) => rows.get(i)?.has(j) ?? false;
  }

  /**
   * Whether something is expected in cells of several tokens.
   * @param {number} size
   */
  pooled(size) {
    const wide = Math.ceil(this.cols / size);
    if (size !== this.size) {
      this.size = size;
      this.coarse = new Uint8Array(wide * Math.ceil(this.rows / size));
      for (let row = 0; row < this.rows; row++) {
        const from = Math.floor(row / size) * wide;
        for (const col of this.columns(row)) this.coarse[from + Math.floor(col / size)] = 1;
      }
    }
    const { coarse } = this;
    return (/** @type {number} */ i, /** @type {number} */ j) =>
      j >= 0 && j < wide && coarse[i * wide + j] === 1;
  }
}

/**
 * The edges between cells that are outlined and those that are not, in pixels: [x0, y0, x1, y1]. Small cells are
 * framed from outside, so that their colours stay in sight.
 * @param {OutlinedCells} outlined
 * @param {Pick<import("./camera.js").Camera, "point" | "zoom">} camera
 * @returns {[number, number, number, number][]}
 */
export function outlineEdges({ size, cells, has }, camera) {
  const grown = camera.zoom * size < LARGE ? 1 : 0;
  /** @type {[number, number, number, number][]} */
  const edges = [];
  for (const [i, j] of cells) {
    const [x0, y0] = camera.point(j * size, i * size);
    const [x1, y1] = camera.point((j + 1) * size, (i + 1) * size);
    const [left, top, right, bottom] = [x0 - grown, y0 - grown, x1 + grown, y1 + grown];
    if (!has(i - 1, j)) edges.push([left, top, right, top]);
    if (!has(i + 1, j)) edges.push([left, bottom, right, bottom]);
    if (!has(i, j - 1)) edges.push([left, top, left, bottom]);
    if (!has(i, j + 1)) edges.push([right, top, right, bottom]);
  }
  return edges;
}

/**
 * Draws the outline.
 * @param {Drawing} context
 * @param {Scene} scene
 * @param {OutlinedCells} outlined
 */
export function drawOutline(context, { camera, colours }, outlined) {
  context.strokeStyle = colours.accent;
  context.lineWidth = camera.zoom * outlined.size < LARGE ? 1 : 1.5;
  context.beginPath();
  for (const [x0, y0, x1, y1] of outlineEdges(outlined, camera)) {
    context.moveTo(x0, y0);
    context.lineTo(x1, y1);
  }
  context.stroke();
}
