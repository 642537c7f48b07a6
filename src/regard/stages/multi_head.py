"""Stage 6, multi-head attention with one big projection: softmax(Q Kᵀ / √d) V in every head at once.

New: the projections of all heads are rows of one matrix, so that one large product replaces many small ones,
and the heads are a dimension of the tensor. The result is the same (`join_heads`).
"""

from __future__ import annotations

import math
from typing import cast

import torch
from torch import Tensor, nn

from regard.attention.arguments import check_whole_number
from regard.attention.masks.named_masks import causal_mask
from regard.stages.checks import check_dropout, check_sequence, head_width
from regard.stages.head import Head
from regard.stages.separate_heads import SeparateHeads


class MultiHeadAttention(nn.Module):
    """Causal multi-head attention: `forward(X) -> out`, (B, T, d_in) in, (B, T, d_out) out.

    `d_out` is the width of all heads together; `dropout` is the probability with which a weight is dropped in
    training.

    >>> layer = MultiHeadAttention(d_in=3, d_out=4, num_heads=2)
    >>> layer(torch.randn(5, 6, 3)).shape
    torch.Size([5, 6, 4])
    """

    def __init__(self, d_in: int, d_out: int, num_heads: int, dropout: float = 0.1) -> None:
        super().__init__()
        d_in = check_whole_number("d_in", d_in)
        self.d_head = head_width(d_out, num_heads)
        self.num_heads = num_heads
        self.W_q = nn.Linear(d_in, d_out, bias=False)
        self.W_k = nn.Linear(d_in, d_out, bias=False)
        self.W_v = nn.Linear(d_in, d_out, bias=False)
        self.dropout = nn.Dropout(check_dropout(dropout))

    def forward(self, X: Tensor) -> Tensor:
        """The output (B, T, d_out) of tokens X (B, T, d_in)."""
        return self.attention(X)[0]  # (B, T, d_out)

    def attention(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """The concatenated outputs of the heads for X (B, T, d_out), and the weights of each (B, H, T, T)."""
        check_sequence("X", X, self.W_q)
        T = X.shape[-2]
        q, k, v = (self.split(W(X)) for W in (self.W_q, self.W_k, self.W_v))  # (B, H, T, d_head) each
        scores = q @ k.mT / math.sqrt(self.d_head)  # (B, H, T, T)
        scores = scores.masked_fill(~causal_mask(T).to(X.device), -torch.inf)
        weights = self.dropout(torch.softmax(scores, dim=-1))  # (B, H, T, T)
        return self.merge(weights @ v), weights  # (B, T, d_out)

    def split(self, x: Tensor) -> Tensor:
        """Projected tokens x (B, T, d_out) as heads (B, H, T, d_head)."""
        return x.reshape(*x.shape[:-1], self.num_heads, self.d_head).transpose(-3, -2)

    def merge(self, x: Tensor) -> Tensor:
        """Heads x (B, H, T, d_head) concatenated again, (B, T, d_out)."""
        return x.transpose(-3, -2).flatten(-2)


def join_heads(separate: SeparateHeads) -> MultiHeadAttention:
    """The same attention with one big projection, which stacks the rows of the separate heads' weights."""
    heads = cast(list[Head], list(separate.heads))
    d_in, d_head = heads[0].key.in_features, heads[0].key.out_features
    joined = MultiHeadAttention(d_in, d_head * len(heads), len(heads), heads[0].dropout.p)
    joined.to(heads[0].key.weight).train(separate.training)
    with torch.no_grad():
        joined.W_q.weight.copy_(torch.cat([head.query.weight for head in heads]))
        joined.W_k.weight.copy_(torch.cat([head.key.weight for head in heads]))
        joined.W_v.weight.copy_(torch.cat([head.value.weight for head in heads]))
    return joined
