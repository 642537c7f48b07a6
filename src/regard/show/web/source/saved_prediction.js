// @ts-check
// The next-token predictions of a saved page: one position out of the arrays that the file keeps.

/**
 * What the model expects after a position.
 * @param {PredictionArrays} arrays
 * @param {string[]} words the texts of the likely tokens
 * @param {string[] | null} tokens of the text
 * @param {number} position
 * @returns {Prediction}
 */
export function savedPrediction({ ids, places, probabilities, losses, ranks }, words, tokens, position) {
  const count = places.length / (losses.length + 1); // for each position
  const likeliest = Array.from({ length: count }, (_, n) => {
    const at = position * count + n;
    return { id: ids[places[at]], token: words[places[at]], probability: probabilities[at] };
  });
  const loss = losses[position];
  const known = position < losses.length && Number.isFinite(loss);
  const token = tokens?.[position + 1] ?? null;
  const next = known ? { token, probability: Math.exp(-loss), rank: ranks[position], loss } : null;
  return { position, likeliest, next };
}
