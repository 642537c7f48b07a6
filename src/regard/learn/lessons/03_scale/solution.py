"""Lesson 3, why √d: softmax(Q Kᵀ / √d) V, attention whose scores do not grow with the width.

A score is a sum of d products, where d is the width of a query. The more products, the larger the scores, and
the sharper the softmax: it would depend on the width, not on the text. Divided by √d, the scores keep their
size at every width.
"""

import math

import torch
from torch import nn

# Predict, then look: 64 numbers of a query and 64 of a key, each drawn with mean 0 and standard deviation 1.
# Their dot product is a sum of 64 products. What is its standard deviation? Within 10 % will do.
std_of_scores = math.sqrt(64)  #: your prediction

from regard.stages.scaled import SelfAttention


if __name__ == "__main__":
    from regard.stages.example import TOKENS, X, with_example_weights

    attention = with_example_weights(SelfAttention(d_model=3, head_dim=2))
    out, weights = attention(X[None])  # a batch of one text
    for token, row in zip(TOKENS, weights[0]):
        print(f"{token:>8}", *(f"{weight:.4f}" for weight in row))
