"""Lesson 8, positions: rotary positions and ALiBi, for attention that knows the order of its tokens.

Attention is blind to order: permute the tokens, and the outputs are permuted and otherwise the same. Rotary
positions turn every query and key by an angle that grows with its position, so that a score depends on the
distance of two tokens. ALiBi subtracts the distance, times a slope, from the score.
"""

import math

import torch
from torch import nn

from regard.stages.positions import rotate, alibi_bias, PositionalAttention

# Predict, then look: one pair turns by 1 radian for each position. Query and key are both (1, 0); the query
# is at position 7, the key at position 4. What is their dot product?
score_at_distance_3 = -0.99  #: your prediction


if __name__ == "__main__":
    x = torch.tensor([[1.0, 0.0]] * 6)
    print("scores of equal tokens after the rotation:", rotate(x) @ rotate(x).mT, sep="\n")
    print("ALiBi, the second of 8 heads:", alibi_bias(8, 4)[1], sep="\n")
