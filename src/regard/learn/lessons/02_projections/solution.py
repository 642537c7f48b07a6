"""Lesson 2, queries, keys, values: softmax(Q Kᵀ) V, attention with three learned projections.

W_q makes a query of each token (what it looks for), W_k a key (what it offers to be found by), W_v a value
(what it hands over). The score of two tokens is now the dot product of one's query with the other's key, and
the output is a mean of values.
"""

import torch
from torch import nn

from regard.stages.trainable import UnscaledSelfAttention

# Predict, then look: with the projections of the lesson, the query of "many" and the key of "Each" have a
# score of 0.8187. And the query of "Each" with the key of "many"? In lesson 1 both directions had one score.
score_of_each_on_many = 0.4743  #: your guess, before you run anything


if __name__ == "__main__":
    torch.manual_seed(0)
    attention = UnscaledSelfAttention(d_model=3, head_dim=2)
    out, weights = attention(torch.randn(1, 6, 3))
    print(tuple(out.shape), tuple(weights.shape), weights.sum(-1))
