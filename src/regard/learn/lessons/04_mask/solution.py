"""Lesson 4, no peeking: softmax(Q Kᵀ / √d + M) V, attention in which no token sees a later one.

M is 0 where a key may be seen and −inf where it is hidden. A score of −inf becomes a weight of exactly 0, and
the weights of the visible keys still sum to 1.
"""

import math

import torch
from torch import nn

from regard.stages.causal import CausalSelfAttention


def finds_leak(attention, x):
    """Whether attention leaks: True if an output depends on a later token of x (B, T, d_model).

    attention(x) returns the output (B, T, head_dim) and the weights (B, T, T). It is somebody else's, so you
    can only try it: does an output move when a later token is another one?
    """
    out, _ = attention(x)
    for t in range(1, x.shape[1]):
        changed = x.clone()
        changed[:, t] = torch.randn_like(x[:, t])  #: another token at position t, (B, d_model)
        out_changed, _ = attention(changed)
        moved = not torch.allclose(out[:, :t], out_changed[:, :t])  #: True if an output before t has moved
        if moved:
            return True
    return False


def suspect(x):
    """Somebody else's attention. Every weight above the diagonal is 0. Does it leak?"""
    scores = x @ x.mT / math.sqrt(x.shape[-1])
    weights = torch.softmax(scores, dim=-1).tril()
    return weights @ x, weights


if __name__ == "__main__":
    torch.manual_seed(0)
    x = torch.randn(1, 6, 8)
    layer = CausalSelfAttention(d_model=8, max_seq_len=6, head_dim=4)
    print(layer.attention(x)[1][0])
    print("your attention leaks:", finds_leak(layer.attention, x))
    print("the suspect leaks:   ", finds_leak(suspect, x))
