// @ts-check
// How much attention heads would lose to a bounded cache, from the tables of `eviction.py` or a generation.

/**
 * The value of a list that is nearest to the wanted one; a negative one stands for the usual.
 * @param {number[]} values
 * @param {number} wanted
 * @param {number} usual
 */
export function nearestTo(values, wanted, usual) {
  const target = wanted >= 0 ? wanted : usual;
  return values.reduce(
    (best, one) => (Math.abs(one - target) < Math.abs(best - target) ? one : best),
    values[0] ?? target,
  );
}

/**
 * The size of cache that is meant, among those that were computed.
 * @param {Pick<Eviction, "windows" | "sinks"> | undefined} table
 * @param {Pick<State, "cacheWindow" | "cacheSinks">} state
 * @returns {CacheSize}
 */
export function cacheSize(table, { cacheWindow, cacheSinks }) {
  const windows = table?.windows ?? [];
  const usual = windows.length ? windows[Math.floor(windows.length / 2)] : 64;
  return {
    window: nearestTo(windows, cacheWindow, Math.min(64, usual)),
    sinks: nearestTo(table?.sinks ?? [], cacheSinks, 4),
  };
}

/**
 * What a head would lose; null if no query would, or if there is no cache.
 * @param {Eviction | undefined} table
 * @param {number} head by its place in the layer
 * @param {CacheSize} size
 */
export function lossOf(table, head, { window, sinks }) {
  if (!table || table.ahead) return null;
  return table.lost[head][table.windows.indexOf(window)]?.[table.sinks.indexOf(sinks)] ?? null;
}

/** @param {(number | null)[]} values */
export function meanOf(values) {
  const numbers = values.filter((x) => x !== null);
  return numbers.length ? numbers.reduce((a, b) => a + b, 0) / numbers.length : null;
}

/**
 * The mean over all heads at every size of window, as [place of the size, mean].
 * @param {Eviction[]} tables
 * @param {number} sinks
 * @returns {[number, number | null][]}
 */
export function lossCurve(tables, sinks) {
  const place = tables[0].sinks.indexOf(sinks);
  return tables[0].windows.map((_, at) => [
    at,
    meanOf(tables.flatMap((table) => table.lost.map((head) => head[at]?.[place] ?? null))),
  ]);
}

/**
 * The mean over the steps of a generation, for a head of a layer.
 * @param {GenerationStep[]} steps
 * @param {number} layer
 * @param {number} head
 */
export function generationLoss(steps, layer, head) {
  return steps.reduce((sum, step) => sum + step.lost[layer][head], 0) / steps.length;
}
