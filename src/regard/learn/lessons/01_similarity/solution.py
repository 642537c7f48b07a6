"""Lesson 1, similarity: softmax(X Xᵀ) X, attention with nothing to learn.

Each row of x is a token. The score of two tokens is their dot product: large where they point the same way.
Softmax turns the scores of one token into weights that are positive and sum to 1. The output of that token is
the mean of all tokens with these weights.
"""

import torch

from regard.stages.simplified import simplified_self_attention

# Predict, then look: "model" gives 0.2319 to itself. What if every number of every token were twice as large?
weight_of_model_if_doubled = 0.4298  #: your guess, before you run anything


if __name__ == "__main__":
    from regard.stages.example import TOKENS, X

    out, weights = simplified_self_attention(X)
    for token, row in zip(TOKENS, weights):
        print(f"{token:>8}", *(f"{weight:.4f}" for weight in row))
