"""Lesson 7, the output projection and cross-attention: heads that are mixed, and a second sequence to read.

Concatenated heads lie side by side: each keeps to its own channels. The output projection W_o mixes them. In
cross-attention the queries come from one sequence, the keys and values from another, the context.
"""

import math

import torch
from torch import nn

from regard.stages.projected import ProjectedMultiHeadAttention
from regard.stages.cross import CrossAttention

# Predict, then look: 2 tokens read a context of 6. How many weights does the map of CrossAttention hold?
weights_in_the_map = 12  #: your prediction


if __name__ == "__main__":
    layer = ProjectedMultiHeadAttention(d_model=64, num_heads=8)
    out, weights = layer.attention(torch.randn(1, 5, 64))
    print("with W_o: out", tuple(out.shape), "weights", tuple(weights.shape))
    out, weights = CrossAttention(d_model=64, d_context=32)(torch.randn(1, 2, 64), torch.randn(1, 6, 32))
    print("cross:    out", tuple(out.shape), "weights", tuple(weights.shape))
