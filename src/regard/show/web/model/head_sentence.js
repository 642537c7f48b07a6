// @ts-check
// What a head does on a text, in one sentence: of its clearest score, beside that of uniform attention. The words are
// those of `heads/head_sentence.py`, which also knows labels.

const [WIDE, NARROW] = [0.8, 0.4]; // normalised entropy from which, and up to which, it is worth a sentence
const SECONDARY = ["sink", "local"]; // many heads have them beside their main function

/**
 * @param {Record<string, Score>} scores
 * @param {Record<string, string>} targets where the attention of a score goes, in words
 */
export function describeScores(scores, targets) {
  const entropy = scores.normalised_entropy?.value ?? null;
  if (entropy !== null && entropy >= WIDE)
    return entropySentence("It spreads its attention almost evenly over the tokens that it sees", entropy);
  const clearest = Object.keys(targets)
    .flatMap((name) => {
      const { value, null: base } = scores[name] ?? { value: null };
      if (value === null || base === null || base === undefined) return [];
      const above = (value - base) * (SECONDARY.includes(name) ? 0.5 : 1);
      return [{ name, value, base, above }];
    })
    .sort((a, b) => b.above - a.above)[0];
  if (clearest && clearest.above > 0)
    return (
      `It puts ${percentage(clearest.value)} of its attention ${targets[clearest.name]}; ` +
      `uniform attention would put ${percentage(clearest.base)} there.`
    );
  if (entropy === null) return "No score is above that of uniform attention.";
  const where = entropy <= NARROW ? "few tokens at a time" : "some tokens more than on others";
  return entropySentence(`Its attention is on ${where}`, entropy);
}

/**
 * @param {string} beginning
 * @param {number} entropy
 */
function entropySentence(beginning, entropy) {
  return `${beginning}: its entropy is ${percentage(entropy)} of that of uniform attention.`;
}

/**
 * A share as a whole percentage that never claims nothing or everything by rounding.
 * @param {number} share
 */
function percentage(share) {
  if (share > 0 && share < 0.005) return "less than 1%";
  if (share >= 0.995 && share < 1) return "more than 99%";
  return `${Math.round(100 * share)}%`;
}
