// @ts-check
// What the shading is of: one head, the mean of a layer's heads, or the mean of all heads of all layers; and a second head
// over the same text.

/** @typedef {Pick<State, "text" | "head" | "scope">} Scope */

/**
 * The layers that are averaged: with the scope "all" those of the chosen layer's stack, else the layer alone.
 * @param {Layer[]} layers
 * @param {Layer} layer
 * @param {string} scope
 */
export function layersInScope(layers, layer, scope) {
  return scope === "all" ? layers.filter((one) => one.stack === layer.stack) : [layer];
}

/**
 * The mean over the heads of several layers, from each layer's own mean.
 * @param {Float32Array[]} means
 * @param {number[]} heads how many each layer has
 */
export function meanOverHeads(means, heads) {
  const all = heads.reduce((sum, n) => sum + n, 0);
  return means[0].map((_, i) => means.reduce((sum, weights, n) => sum + (weights[i] * heads[n]) / all, 0));
}

/**
 * The weights of a row or a column in a scope. `ask` is the source's `row` or `column`.
 * @param {Source["row"]} ask
 * @param {Scope} scope
 * @param {Layer} layer
 * @param {Layer[]} layers all layers of the text
 * @param {number} index
 * @param {Quantity} [quantity]
 * @returns {Promise<Float32Array>}
 */
export async function weightsInScope(ask, { text, head, scope }, layer, layers, index, quantity) {
  if (scope !== "all") return ask(text, layer.key, scope === "head" ? head : "mean", index, quantity);
  const shown = layersInScope(layers, layer, scope);
  if (shown.length === layers.length) return ask(text, "mean", "mean", index, quantity);
  const means = await Promise.all(shown.map((one) => ask(text, one.key, "mean", index, quantity)));
  return meanOverHeads(
    means,
    shown.map((one) => one.heads.length),
  );
}

/**
 * The key that gets the most over the heads in a scope; null if there is none.
 * @param {Pick<Source, "thumbs">} source
 * @param {Scope} scope
 * @param {Layer[]} shown the layers in the scope
 * @returns {Promise<number | null>}
 */
export async function sinkInScope(source, { text, head, scope }, shown) {
  /** @type {Map<number, number>} */
  const sums = new Map();
  for (const layer of shown) {
    const { sinks } = await source.thumbs(text, layer.key);
    sinks.forEach(({ key, share }, h) => {
      if (scope === "head" && layer.heads[h] !== head) return;
      sums.set(key, (sums.get(key) ?? 0) + share);
    });
  }
  return [...sums].sort((a, b) => b[1] - a[1])[0]?.[0] ?? null;
}

/**
 * A scope in words.
 * @param {Scope} scope
 * @param {Layer} layer
 * @param {string} [together] how the heads are taken together: contributions are added up
 */
export function scopeName({ head, scope }, { stack, heads, key }, together = "mean") {
  if (scope === "all") return `The ${together} over all heads of all ${stack ? `${stack} ` : ""}layers`;
  if (scope === "layer") return `The ${together} over the ${heads.length} heads of layer ${key}`;
  return `Layer ${key}, head ${head}`;
}

/**
 * The second head of the address, as in "2/1", if the text has it and it is another one than the first.
 * @param {Pick<State, "secondHead" | "layer" | "head" | "scope">} state
 * @param {Layer[]} layers
 * @param {Layer} layer the first head's
 */
export function secondHead({ secondHead: address, head, scope }, layers, layer) {
  if (scope !== "head") return null;
  const [key, number] = address.split("/");
  const other = alike(layers, layer).find((one) => one.key === key);
  const isOther = other?.heads.includes(Number(number)) && (key !== layer.key || Number(number) !== head);
  return other && number && isOther ? { layer: other, head: Number(number) } : null;
}

/**
 * The layers that read the same tokens, so that their weights can stand side by side.
 * @param {Layer[]} layers
 * @param {Layer} layer
 */
function alike(layers, { stack, rows, cols }) {
  return layers.filter((one) => one.stack === stack && one.rows === rows && one.cols === cols);
}

/**
 * The heads to choose from, as [address, name].
 * @param {Layer[]} layers
 * @param {Layer} layer the first head's
 * @param {number} head
 */
export function secondHeadOptions(layers, layer, head) {
  const heads = alike(layers, layer).flatMap(({ key, heads: numbers }) =>
    numbers
      .filter((number) => key !== layer.key || number !== head)
      .map((number) => [`${key}/${number}`, `${key}.${number}`]),
  );
  return [["", "none"], ...heads];
}
