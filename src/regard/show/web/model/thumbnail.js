// @ts-check
// Thumbnails of a layer: a small picture of every head, and its sink key, as `thumbnails.py` defines them.

import { settings } from "../data/settings.js";

/**
 * @param {HeadMap[]} heads of a layer
 * @param {number} side pixels
 * @param {Pause} pause
 * @returns {Promise<Thumbs>}
 */
export async function thumbnails(heads, side, pause) {
  const pictures = new Uint8Array(heads.length * side * side);
  const sinks = [];
  for (const [number, head] of heads.entries()) {
    const { picture, sink } = await thumbnail(head, side, pause);
    pictures.set(picture, number * side * side);
    sinks.push(sink);
  }
  return { pictures, sinks };
}

/**
 * @param {HeadMap} head
 * @param {number} side
 * @param {Pause} pause
 */
async function thumbnail(head, side, pause) {
  const { T, S } = head;
  const { sampled: queries, most_weights } = settings.measures;
  const [high, wide] = [Math.min(side, T), Math.min(side, S)];
  const most = Math.max(4, Math.min(queries, Math.floor(most_weights / (side * S))));
  const cells = cellsOfKeys(S, wide);
  const [mass, visible] = [new Float64Array(high * wide), new Float64Array(high * wide)];
  const [received, seen] = [new Float64Array(S), new Float64Array(S)];
  let active = 0;
  for (let y = 0; y < high; y++) {
    const rows = sampled(Math.floor((y * T) / high), Math.floor(((y + 1) * T) / high), most);
    for (const row of rows) {
      let sees = 0;
      head.visible(row, 0, S, (key, weight) => {
        mass[y * wide + cells[key]] += weight / rows.length;
        visible[y * wide + cells[key]] += 1;
        received[key] += weight;
        seen[key] += 1;
        sees = 1;
      });
      active += sees;
      await pause();
    }
  }
  const picture = new Uint8Array(side * side);
  for (let y = 0; y < side; y++) {
    for (let x = 0; x < side; x++) {
      const cell = Math.floor((y * high) / side) * wide + Math.floor((x * wide) / side);
      const share = Math.min(1, Math.max(0, mass[cell]));
      picture[y * side + x] = visible[cell] ? Math.round(1 + 254 * Math.sqrt(share)) : 0;
    }
  }
  return { picture, sink: sinkKey(received, seen, active) };
}

/**
 * The cell of each key, as `AttentionMap.pool` sets them.
 * @param {number} S
 * @param {number} wide
 */
function cellsOfKeys(S, wide) {
  const cells = new Uint16Array(S);
  for (let x = 0; x < wide; x++) cells.fill(x, Math.floor((x * S) / wide), Math.floor(((x + 1) * S) / wide));
  return cells;
}

/**
 * At most `most` queries from `first` to before `last`, evenly spaced.
 * @param {number} first
 * @param {number} last
 * @param {number} most
 */
function sampled(first, last, most) {
  const count = Math.min(most, last - first);
  return Array.from(
    { length: count },
    (_, n) => first + Math.floor(((2 * n + 1) * (last - first)) / (2 * count)),
  );
}

/**
 * The key with the largest mean weight over the queries that see it, if enough of them do (`sink.py`).
 * @param {Float64Array} received
 * @param {Float64Array} seen
 * @param {number} active queries that see anything
 */
export function sinkKey(received, seen, active) {
  const needed = Math.min(settings.measures.min_queries, Math.floor(active / 2) + 1);
  let [key, share] = [0, 0];
  received.forEach((sum, j) => {
    if (seen[j] >= needed && sum / seen[j] > share) [key, share] = [j, sum / seen[j]];
  });
  return { key, share };
}
