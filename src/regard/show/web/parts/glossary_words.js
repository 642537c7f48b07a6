// @ts-check
// The words of the field that the page uses, as the glossary of the documentation explains them.

/** @type {Record<string, string>} */
export const GLOSSARY = {
  "Attention mass":
    "The sum of some weights of a row: the share of its attention that a query gives to some keys. The mass on all visible keys is 1, unless there is a sink logit.",
  "Attention weight":
    "One entry of the matrix after the softmax: how much of key j's value goes into the output of query i.",
  Attribution:
    "Direct logit attribution: a logit as the sum of what the embedding, each head and each MLP adds to it, with the norms' scales held fixed. seen.attribution(token) makes one.",
  Baseline:
    "The score that a head would have by chance. The uniform baseline (null in tables) is the score of uniform attention under the same mask.",
  "Causal mask":
    "A query sees its own position and earlier ones. Queries are aligned with the end of the keys, as a KV cache needs it; causal.top_left aligns them with the start.",
  Certificate:
    "The evidence that a capture shows the weights which the model used. For each layer, the weights of the map times the values are compared with the output of the model's own attention.",
  Distance:
    "For a query, Σ A · (position of the query − position of the key): the mean number of tokens that it looks back.",
  "Duplicate-token head": "A head that attends to earlier copies of the query's own token.",
  Edge: "A query and a key that it sees: one entry of the map. The sink edges are those to the sink.",
  "Edited run":
    "A run of a model under regard.intervene. Captures and pages say that they show one, and what was edited.",
  Entropy:
    "For a query, −Σ A ln A, in nats: 0 if it attends to one key, ln n if it attends equally to n keys. Normalised entropy divides it by the logarithm of the number of visible keys, so that it lies between 0 and 1.",
  Eviction:
    "A KV cache of bounded size removes, or evicts, old keys. The eviction loss of a head is the attention mass on keys that a cache of the first 4 and the latest 64 keys would have evicted.",
  "Grouped-query attention":
    "Several query heads share the keys and values of one key/value head, which makes the KV cache smaller. With one key/value head for all it is called multi-query attention.",
  Head: "One attention of its own, with queries, keys and values of width D. A layer has several side by side, and each has its own map.",
  "Head label":
    'A name such as "induction" or "previous token". A head is labelled only if its score is clearly above both baselines; What heads do gives the rule.',
  "Induction head":
    "A head that finds an earlier copy of the current token and attends to the token that came after it. Its score is the prefix-matching score of Olsson et al. (2022).",
  Key: "The vector with which a token answers queries: what it can be found by. It comes from the projection W_k.",
  "KV cache":
    "The keys and values of the tokens so far, kept while a model writes, so that each new token costs one row instead of the whole matrix. It changes no output.",
  Logits:
    "The numbers that a model gives to every token of its vocabulary before softmax makes them probabilities.",
  Loss: "In language models, the mean of −ln(probability of the token that came): 0 if it was certain and right, ln V for guessing among V tokens. Nats.",
  Mask: "Which queries see which keys. In Regard a mask is a predicate of positions, not a matrix: causal & window(128).",
  Max: "In a pooled map, the greatest single weight of a cell.",
  "Previous-token head": "A head that attends to the token before the query.",
  Query: "The vector with which a token asks: what it looks for. It comes from the projection W_q.",
  "Residual stream":
    "The vector of a token as it runs through the blocks. Each attention and each MLP reads it and adds to it.",
  Scale: "The factor on the scores before softmax, 1/√D. It keeps their spread the same at every head width.",
  Score:
    "Of a query and a key: their dot product times the scale, before the softmax. Of a head: a number from its map and the tokens that says how much it behaves in one way, such as induction.",
  Sink: "A key that receives most of a head's attention whatever the query is, often the first token. Regard calls a key a sink if it receives more than 0.3 on average over the queries that see it, and at least 16 queries (or more than half of them, in a short text) see it.",
  "Sink logit":
    "A learned number for each head, as in gpt-oss, that takes part in the softmax without a value of its own. The weights of a row then sum to less than 1. sinks= in regard.attend.",
  Softmax:
    "Makes positive numbers that sum to 1 of any numbers: exp of each, divided by the sum of all. The largest stays the largest.",
  Token:
    "A piece of text that a model reads as one: a word, a part of one, or a letter. Its number in the vocabulary is its id.",
  "Uniform attention": "A row that gives the same weight to every visible key.",
  Value: "The vector that a token hands over to those who attend to it. It comes from the projection W_v.",
  "Value-weighted attention":
    "Weights times ‖W_o v_j‖, the length of what each key would add to the residual stream.",
  Window: "The n latest keys, the query's own included, that a query sees. window(n) is the mask.",
};
