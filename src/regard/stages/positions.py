"""Stage 8, positions: softmax(Q Kᵀ / √d + M) V, in which the order of the tokens counts.

New: attention compares tokens, not places. If the tokens before a token change places, its output stays the
same. A position can enter at three points: added to the tokens (`LearnedPositions`), as a rotation of the
queries and keys (`rotate`), or as a bias of the scores (`alibi_bias`).
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn

from regard.stages.checks import check_pairs, check_sequence, check_settings


class LearnedPositions(nn.Module):
    """Adds a learned vector for each place to the tokens: `forward(x) -> x`, (B, T, d_model) in and out.

    T is at most `max_seq_len`. A model does this once, before its first layer.
    """

    def __init__(self, d_model: int, max_seq_len: int) -> None:
        super().__init__()
        check_settings(d_model=d_model, max_seq_len=max_seq_len)
        self.table = nn.Embedding(max_seq_len, d_model)

    def forward(self, x: Tensor) -> Tensor:
        """Tokens x (B, T, d_model) plus the vectors of the places 0 … T − 1."""
        check_sequence("x", x, self.table, longest=self.table.num_embeddings)
        return x + self.table.weight[: x.shape[-2]]  # (B, T, d_model)


def rotate(x: Tensor, start: int = 0) -> Tensor:
    """Rotary positions: queries or keys x (…, T, head_dim), each pair of channels turned by its own angle.

    Channel i is paired with i + head_dim / 2. The token at position p, counted from `start`, turns by p times
    10000 ** (−2i / head_dim) radians. The score of two turned tokens depends on their distance only.

    >>> rotate(torch.tensor([[1.0, 0.0], [1.0, 0.0]]))
    tensor([[1.0000, 0.0000],
            [0.5403, 0.8415]])
    """
    check_pairs("x", x.shape[-1])
    T, half = x.shape[-2], x.shape[-1] // 2
    dtype = torch.promote_types(x.dtype, torch.float32)
    turns = 10000.0 ** (-torch.arange(half, dtype=dtype, device=x.device) / half)  # (head_dim / 2,)
    places = torch.arange(start, start + T, device=x.device)  # (T,)
    angles = places[:, None] * turns  #: one angle for each place and each pair, (T, head_dim / 2)
    cos, sin = angles.cos(), angles.sin()
    a, b = x[..., :half], x[..., half:]  # (…, T, head_dim / 2) each: the first and second of every pair
    turned_a = a * cos - b * sin  #: the first channels of the turned pairs, (…, T, head_dim / 2)
    turned_b = b * cos + a * sin  #: the second channels of the turned pairs, (…, T, head_dim / 2)
    return torch.cat([turned_a, turned_b], dim=-1).to(x.dtype)  # (…, T, head_dim)


def alibi_bias(num_heads: int, T: int) -> Tensor:
    """ALiBi: each step of distance lowers the scores of T tokens by the slope of the head, (H, T, T).

    The slopes are 2 ** (−8 / H), 2 ** (−16 / H), … for H = `num_heads`, as published for powers of two.

    >>> alibi_bias(num_heads=8, T=3)[0]
    tensor([[-0.0000, -0.5000, -1.0000],
            [-0.5000, -0.0000, -0.5000],
            [-1.0000, -0.5000, -0.0000]])
    """
    check_settings(num_heads=num_heads)
    heads = torch.arange(1, num_heads + 1)  # (H,)
    slopes = 2.0 ** (-8.0 * heads / num_heads)  #: the slope of each head, (H,)
    places = torch.arange(T)
    distance = (places[:, None] - places).abs()  #: of query i (row) and key j (column), (T, T)
    return -slopes[:, None, None] * distance  #: the bias, (H, T, T)


class PositionalAttention(nn.Module):
    """Causal multi-head attention with positions: `forward(x) -> out`; `attention(x) -> (out, weights)`.

    `x` and the output are (B, T, d_model); `num_heads` must divide `d_model`. `positions` is "rotary",
    "alibi", or None if the tokens hold their positions already. `dropout` is the probability with which a
    weight is dropped in training.
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        positions: Literal["rotary", "alibi"] | None = "rotary",
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        check_settings(d_model=d_model, num_heads=num_heads, positions=positions, dropout=dropout)
        self.num_heads, self.head_dim, self.positions = num_heads, d_model // num_heads, positions
        self.W_q = nn.Linear(d_model, d_model, bias=False)
        self.W_k = nn.Linear(d_model, d_model, bias=False)
        self.W_v = nn.Linear(d_model, d_model, bias=False)
        self.W_o = nn.Linear(d_model, d_model, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """The output (B, T, d_model) of tokens x (B, T, d_model)."""
        return self.attention(x)[0]

    def attention(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The output (B, T, d_model) of x (B, T, d_model), and the weights of each head (B, H, T, T)."""
        check_sequence("x", x, self.W_q)
        T = x.shape[-2]
        visible = torch.ones(T, T, dtype=torch.bool, device=x.device).tril()  # (T, T)
        q, k, v = self.split(self.W_q(x)), self.split(self.W_k(x)), self.split(self.W_v(x))
        if self.positions == "rotary":
            q, k = rotate(q), rotate(k)  #: turn what has to know its place, (B, H, T, head_dim) each
        scores = q @ k.mT / math.sqrt(self.head_dim)  # (B, H, T, T)
        if self.positions == "alibi":
            scores = scores + alibi_bias(self.num_heads, T).to(scores)
        scores = scores.masked_fill(~visible, -torch.inf)
        weights = self.dropout(torch.softmax(scores, dim=-1))  # (B, H, T, T)
        heads = (weights @ v).transpose(-3, -2).flatten(-2)  # (B, T, d_model) side by side
        return self.W_o(heads), weights  # (B, T, d_model)

    def split(self, x: Tensor) -> Tensor:
        """Projected tokens x (B, T, d_model) as heads (B, H, T, head_dim)."""
        return x.reshape(*x.shape[:-1], self.num_heads, self.head_dim).transpose(-3, -2)
