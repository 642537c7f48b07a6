// @ts-check
// A second head over the same text, in a colour of its own: which one, and what it attends to.

/**
 * The second head of the address, as in "2/1", if the text has it and it is another one than the first.
 * @param {Pick<State, "secondHead" | "layer" | "head" | "scope">} state
 * @param {Layer[]} layers
 * @param {Layer} layer the first head's
 * @returns {{ layer: Layer, head: number } | null}
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
 * @returns {string[][]}
 */
export function secondHeadOptions(layers, layer, head) {
  const heads = alike(layers, layer).flatMap(({ key, heads: numbers }) =>
    numbers
      .filter((number) => key !== layer.key || number !== head)
      .map((number) => [`${key}/${number}`, `${key}.${number}`]),
  );
  return [["", "none"], ...heads];
}
