"""Lesson 9, the cache: keys and values of earlier tokens are kept, so that each is computed once.

A causal model writes one token at a time. The keys and values of the tokens before never change, so the layer
returns them, and gets them back with the next token. The result has to be the same as without a cache, in
whatever pieces a text arrives.
"""

import math

import torch
from torch import nn

from regard.stages.cached import CachedMultiHeadAttention

# Predict, then look: how many megabytes (millions of bytes) are the keys and values of 1,000 tokens in
# Llama 3.1 8B? It has 32 layers, each with 8 key/value heads of width 128, and 2 bytes for each number.
megabytes_of_a_cache = 131  #: your guess, before you compute it


if __name__ == "__main__":
    torch.manual_seed(0)
    layer = CachedMultiHeadAttention(d_model=16, num_heads=2).eval()
    x = torch.randn(1, 6, 16)
    whole, _ = layer(x)
    cache = None
    for t in range(6):
        out, cache = layer(x[:, t : t + 1], cache)
        difference = (out - whole[:, t : t + 1]).abs().max().item()
        print(f"token {t}: {cache[0].shape[2]} keys in the cache, difference {difference:.1e}")
