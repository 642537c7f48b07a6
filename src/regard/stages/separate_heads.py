"""Stage 6, several heads: softmax(Q Kᵀ / √d + M) V once for each head, with projections of its own.

New: the heads attend to the same tokens in different ways, and their outputs are concatenated. The mask is
now made for the length at hand, so there is no longest length.
"""

from __future__ import annotations

import math
from typing import cast

import torch
from torch import Tensor, nn

from regard.stages.checks import check_sequence, check_settings


class SeparateHeads(nn.Module):
    """Causal heads side by side: `forward(x) -> out`; `attention(x) -> (out, weights)`.

    `x` is (B, T, d_model) and the output (B, T, d_out), where `d_out` is the width of all `num_heads` heads
    together. `dropout` is the probability with which a weight is dropped in training.
    """

    def __init__(self, d_model: int, d_out: int, num_heads: int, dropout: float = 0.1) -> None:
        super().__init__()
        check_settings(d_model=d_model, d_out=d_out, num_heads=num_heads, dropout=dropout)
        head_dim = d_out // num_heads
        self.W_q = nn.ModuleList(nn.Linear(d_model, head_dim, bias=False) for _ in range(num_heads))
        self.W_k = nn.ModuleList(nn.Linear(d_model, head_dim, bias=False) for _ in range(num_heads))
        self.W_v = nn.ModuleList(nn.Linear(d_model, head_dim, bias=False) for _ in range(num_heads))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """The concatenated outputs of the heads (B, T, d_out) for tokens x (B, T, d_model)."""
        return self.attention(x)[0]

    def attention(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The concatenated outputs of the heads for x (B, T, d_out), and the weights of each (B, H, T, T)."""
        check_sequence("x", x, cast(nn.Linear, self.W_q[0]))
        T = x.shape[-2]
        visible = torch.ones(T, T, dtype=torch.bool, device=x.device).tril()  # (T, T)
        outs, maps = [], []
        for W_q, W_k, W_v in zip(self.W_q, self.W_k, self.W_v, strict=True):
            q, k, v = W_q(x), W_k(x), W_v(x)  # (B, T, head_dim) each
            scores = q @ k.mT / math.sqrt(k.shape[-1])  # (B, T, T)
            scores = scores.masked_fill(~visible, -torch.inf)
            weights = self.dropout(torch.softmax(scores, dim=-1))  # (B, T, T)
            outs.append(weights @ v)  # (B, T, head_dim)
            maps.append(weights)
        return torch.cat(outs, dim=-1), torch.stack(maps, dim=-3)  # (B, T, d_out), (B, H, T, T)
