"""Lesson 6, several heads: one projection for all of them, then split, attend, merge.

Every head has its own queries, keys and values and attends in its own way. They are not computed one by one:
one big projection gives the channels of all heads side by side, d_out = num_heads × head_dim. You split them,
move the heads in front of the tokens, attend in all heads at once, and lay the heads side by side again.
"""

import math

import torch
from torch import nn

from regard.stages.multi_head import MultiHeadAttention

# Predict, then look: the three projections of MultiHeadAttention(d_model=64, d_out=64, num_heads=1) hold
# 12,288 numbers. How many do they hold with num_heads=8?
parameters_of_eight_heads = 12288  #: your prediction


if __name__ == "__main__":
    layer = MultiHeadAttention(d_model=64, d_out=64, num_heads=8)
    out, weights = layer.attention(torch.randn(2, 5, 64))
    print("out", tuple(out.shape), "weights", tuple(weights.shape))
