// @ts-check
// What each control of the page does, in a sentence or two: by the name of its radio buttons, or by its label.

/** @type {Record<string, string>} */
export const CONTROL_WORDS = {
  // The map and the text
  Layer: "One block of the model. Layers run one after another; each has heads of its own.",
  Head: "One attention of a layer, with weights of its own.",
  "Next token": "The token whose logit is explained: what each key adds to it, if it came after the query.",
  "Second head": "Draws another head over the first, in a second colour.",
  Quantity:
    "Attention weights; value-weighted: each weight times the norm of what the key’s value adds to the residual stream; or " +
    "contributions: what each key adds to the logit of the token that may follow, through this head.",

  scale: "How numbers become colours. Log shades also show small weights.",
  top:
    "This head: the colours suit the whole map, and stay as you zoom. View: they suit the part in view. 0 to 1: the " +
    "same for every head.",
  reduce:
    "A cell of a long map stands for many weights. Mass is their sum over keys, averaged over queries; max is the greatest.",
  sink: "Left out: the colours suit all other keys than the one that receives the most attention.",
  units:
    "Words and sentences: the weights are summed over the tokens of a key and averaged over the tokens of a query.",
  direction:
    "Choose a query to shade the keys that it attends to, or a key to shade the queries that attend to it.",
  scope: "The weights of one head, or their mean over the heads of the layer or of all layers.",
  "text-sink":
    "Left out leaves the key that receives the most attention, or a picture's outlier patches, unshaded, so that the " +
    "others stand out.",

  // Heads
  Score: "A number from the map and the tokens that says how much a head behaves in one way.",
  Label:
    "Shows only heads with this label. A head has one only if its score is clearly above those of uniform attention and " +
    "of shuffled tokens.",
  "compare-scale": "How numbers become colours, in both maps. Log shades also show small weights.",

  // Steps
  "steps-which":
    "A row of the model’s own computation, or of an example that is small enough to compute by hand.",
  Stage: "One step of building attention, as in the course: from plain averages to several masked heads.",
  Token: "The token whose row is computed: the query.",
  "Strongest keys": "How many of the keys with the largest weights are listed. The others are added up.",

  // Cache
  Policy: "How a full cache chooses the keys that it evicts.",

  // Survey
  "Horizontal score": "The score by which heads are placed from left to right.",
  "Vertical score": "The score by which heads are placed from bottom to top.",

  // Time
  "time-on":
    "The text that the heads were scored on during training: validation text, or random tokens, repeated.",
  Step: "The optimizer step of the training run.",

  // Cuts
  "cut-of": "Whether the edges are cut in this head alone or in all heads of the layer.",
};

/**
 * What a choice does: in its view, or wherever there is one of this name.
 * @param {string} name of its radio buttons, as in "text-scale"
 */
export function choiceWords(name) {
  return CONTROL_WORDS[name] ?? CONTROL_WORDS[name.replace(/^\w+-/, "")];
}
