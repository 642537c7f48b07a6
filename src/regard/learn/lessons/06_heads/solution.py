"""Lesson 6, several heads: one projection for all of them, then split, attend, merge.

Every head has its own queries, keys and values and attends in its own way. They are not computed one by one:
one big projection gives the channels of all heads side by side, d_out = num_heads × head_dim. You split them,
move the heads in front of the tokens, attend in all heads at once, and lay the heads side by side again.

Replace every `...` below, then run:

    regard learn 6 --check      judges this file, and names your mistake
    regard learn 6 --watch      does so whenever you save it
    regard learn 6 --hint       says how to mend it
    python lesson6.py           runs the lines at the end
"""

import math

import torch
from torch import nn


class MultiHeadAttention(nn.Module):
    """Causal heads: tokens x (B, T, d_model) give the output (B, T, d_out) and the weights (B, H, T, T)."""

    def __init__(self, d_model, d_out, num_heads, dropout=0.1):
        super().__init__()
        if d_out % num_heads:
            raise ValueError(f"num_heads: expected a number that divides d_out = {d_out}, got {num_heads}")
        self.num_heads = num_heads
        self.head_dim = d_out // num_heads  #: the width of one head
        self.W_q = nn.Linear(d_model, d_out, bias=False)
        self.W_k = nn.Linear(d_model, d_out, bias=False)
        self.W_v = nn.Linear(d_model, d_out, bias=False)
        self.dropout = nn.Dropout(dropout)

    def split(self, t):
        """Projected tokens t (B, T, d_out) as heads (B, H, T, head_dim)."""
        B, T, _ = t.shape
        t = t.view(B, T, self.num_heads, self.head_dim)  #: the last axis cut into heads, (B, T, H, head_dim)
        return t.transpose(1, 2)  #: the heads in front of the tokens, (B, H, T, head_dim)

    def merge(self, heads):
        """Outputs of the heads (B, H, T, head_dim) side by side, (B, T, d_out)."""
        B, H, T, head_dim = heads.shape
        tokens = heads.transpose(1, 2)  #: the tokens in front of the heads again, (B, T, H, head_dim)
        return tokens.reshape(B, T, H * head_dim)  #: the heads side by side, (B, T, d_out)

    def forward(self, x):
        T = x.shape[1]
        q, k, v = (self.split(W(x)) for W in (self.W_q, self.W_k, self.W_v))  # (B, H, T, head_dim) each
        scores = q @ k.mT / math.sqrt(self.head_dim)  #: scaled dot products of every head, (B, H, T, T)
        visible = torch.ones(T, T, dtype=torch.bool, device=x.device).tril()  # (T, T) True = visible
        scores = scores.masked_fill(~visible, -torch.inf)  # (B, H, T, T)
        weights = self.dropout(torch.softmax(scores, dim=-1))  # (B, H, T, T)
        out = self.merge(weights @ v)  #: the outputs of the heads, merged, (B, T, d_out)
        return out, weights


# Predict, then look: the three projections of MultiHeadAttention(d_model=64, d_out=64, num_heads=1) hold
# 12,288 numbers. How many do they hold with num_heads=8?
parameters_of_eight_heads = 12288  #: your prediction


if __name__ == "__main__":
    attention = MultiHeadAttention(d_model=64, d_out=64, num_heads=8)
    out, weights = attention(torch.randn(2, 5, 64))
    print("out", tuple(out.shape), "weights", tuple(weights.shape))
