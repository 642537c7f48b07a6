"""Lesson 7, the output projection and cross-attention: heads that are mixed, and a second sequence to read.

Concatenated heads lie side by side: each keeps to its own channels. The output projection W_o mixes them. In
cross-attention the queries come from one sequence, the keys and values from another, the context.

Replace every `...` below, then run:

    regard learn 7 --check      judges this file, and names your mistake
    regard learn 7 --watch      does so whenever you save it
    regard learn 7 --hint       says how to mend it
    python lesson7.py           runs the lines at the end
"""

import math

import torch
from torch import nn


class MultiHeadAttention(nn.Module):
    """Causal heads and W_o: x (B, T, d_model) gives the output (B, T, d_model) and weights (B, H, T, T)."""

    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads, self.head_dim = num_heads, d_model // num_heads
        self.W_q = nn.Linear(d_model, d_model, bias=False)
        self.W_k = nn.Linear(d_model, d_model, bias=False)
        self.W_v = nn.Linear(d_model, d_model, bias=False)
        self.W_o = nn.Linear(d_model, d_model, bias=False)  #: the output projection, to d_model, no bias

    def split(self, t):
        """Projected tokens t (B, T, d_model) as heads (B, H, T, head_dim)."""
        B, T, _ = t.shape
        return t.view(B, T, self.num_heads, self.head_dim).transpose(1, 2)

    def forward(self, x):
        B, T, d_model = x.shape
        q, k, v = (self.split(W(x)) for W in (self.W_q, self.W_k, self.W_v))  # (B, H, T, head_dim) each
        scores = q @ k.mT / math.sqrt(self.head_dim)  # (B, H, T, T)
        visible = torch.ones(T, T, dtype=torch.bool, device=x.device).tril()  # (T, T) True = visible
        weights = torch.softmax(scores.masked_fill(~visible, -torch.inf), dim=-1)  # (B, H, T, T)
        heads = (weights @ v).transpose(1, 2).reshape(B, T, d_model)  #: weights @ v, merged, (B, T, d_model)
        out = self.W_o(heads)  #: the heads mixed by the output projection, (B, T, d_model)
        return out, weights


class CrossAttention(nn.Module):
    """One head on a second sequence: x (B, T, d_model) and context (B, S, d_context) give the output
    (B, T, d_model) and the weights (B, T, S). No mask: all of the context is there already."""

    def __init__(self, d_model, d_context):
        super().__init__()
        self.W_q = nn.Linear(d_model, d_model, bias=False)
        self.W_k = nn.Linear(d_context, d_model, bias=False)  #: for keys, whose tokens have d_context numbers
        self.W_v = nn.Linear(d_context, d_model, bias=False)  #: for values

    def forward(self, x, context):
        q = self.W_q(x)  #: the queries, (B, T, d_model)
        k, v = self.W_k(context), self.W_v(context)  #: the keys and the values, (B, S, d_model) each
        scores = q @ k.mT / math.sqrt(k.shape[-1])  #: scaled dot products, (B, T, S)
        weights = torch.softmax(scores, dim=-1)  # (B, T, S)
        out = weights @ v  # (B, T, d_model)
        return out, weights


# Predict, then look: 2 tokens read a context of 6. How many weights does the map of CrossAttention hold?
weights_in_the_map = 12  #: your prediction


if __name__ == "__main__":
    out, weights = MultiHeadAttention(d_model=64, num_heads=8)(torch.randn(1, 5, 64))
    print("with W_o: out", tuple(out.shape), "weights", tuple(weights.shape))
    out, weights = CrossAttention(d_model=64, d_context=32)(torch.randn(1, 2, 64), torch.randn(1, 6, 32))
    print("cross:    out", tuple(out.shape), "weights", tuple(weights.shape))
