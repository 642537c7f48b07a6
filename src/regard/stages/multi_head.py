"""Stage 6, multi-head attention: softmax(Q Kᵀ / √d + M) V in every head at once.

New: the projections of all heads are rows of one matrix, so that one large product replaces many small ones,
and the heads are a dimension of the tensor. The result is that of `SeparateHeads` (see `join_heads`).
"""

from __future__ import annotations

import math
from typing import cast

import torch
from torch import Tensor, nn

from regard.stages.checks import check_sequence, check_settings
from regard.stages.separate_heads import SeparateHeads


class MultiHeadAttention(nn.Module):
    """Causal multi-head attention: `forward(x) -> out`; `attention(x) -> (out, weights)`.

    `x` is (B, T, d_model) and the output (B, T, d_out), where `d_out` is the width of all `num_heads` heads
    together. `dropout` is the probability with which a weight is dropped in training.

    >>> layer = MultiHeadAttention(d_model=3, d_out=4, num_heads=2)
    >>> layer(torch.randn(5, 6, 3)).shape
    torch.Size([5, 6, 4])
    """

    def __init__(self, d_model: int, d_out: int, num_heads: int, dropout: float = 0.1) -> None:
        super().__init__()
        check_settings(d_model=d_model, d_out=d_out, num_heads=num_heads, dropout=dropout)
        self.num_heads = num_heads
        self.head_dim = d_out // num_heads  #: the width of one head
        self.W_q = nn.Linear(d_model, d_out, bias=False)
        self.W_k = nn.Linear(d_model, d_out, bias=False)
        self.W_v = nn.Linear(d_model, d_out, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """The output (B, T, d_out) of tokens x (B, T, d_model)."""
        return self.attention(x)[0]

    def attention(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The concatenated outputs of the heads for x (B, T, d_out), and the weights of each (B, H, T, T)."""
        check_sequence("x", x, self.W_q)
        T = x.shape[-2]
        visible = torch.ones(T, T, dtype=torch.bool, device=x.device).tril()  # (T, T)
        q, k, v = self.split(self.W_q(x)), self.split(self.W_k(x)), self.split(self.W_v(x))
        scores = q @ k.mT / math.sqrt(self.head_dim)  #: scaled dot products of every head, (B, H, T, T)
        scores = scores.masked_fill(~visible, -torch.inf)
        weights = self.dropout(torch.softmax(scores, dim=-1))  # (B, H, T, T)
        out = self.merge(weights @ v)  #: the outputs of the heads, merged, (B, T, d_out)
        return out, weights

    def split(self, x: Tensor) -> Tensor:
        """Projected tokens x (B, T, d_out) as heads (B, H, T, head_dim)."""
        x = x.view(*x.shape[:-1], self.num_heads, self.head_dim)  #: the heads apart, (B, T, H, head_dim)
        return x.transpose(-3, -2)  #: the heads in front of the tokens, (B, H, T, head_dim)

    def merge(self, x: Tensor) -> Tensor:
        """The outputs x (B, H, T, head_dim) of the heads, concatenated (B, T, d_out)."""
        tokens = x.transpose(-3, -2)  #: the tokens in front of the heads again, (B, T, H, head_dim)
        return tokens.flatten(-2)  #: the heads side by side, (B, T, d_out)


def join_heads(separate: SeparateHeads) -> MultiHeadAttention:
    """The same attention with one big projection, which stacks the rows of the weights of `separate`."""
    first = cast(nn.Linear, separate.W_q[0])
    num_heads = len(separate.W_q)
    joined = MultiHeadAttention(
        first.in_features, num_heads * first.out_features, num_heads, separate.dropout.p
    )
    joined.to(first.weight).train(separate.training)
    with torch.no_grad():
        for big, small in (
            (joined.W_q, separate.W_q),
            (joined.W_k, separate.W_k),
            (joined.W_v, separate.W_v),
        ):
            big.weight.copy_(torch.cat([cast(nn.Linear, W).weight for W in small]))
    return joined
