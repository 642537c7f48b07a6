"""Stage 2, trainable self-attention: softmax(Q Kᵀ) V.

New: three learned projections turn a token into a query (what it looks for), a key (what it offers) and a
value (what it hands over). The scores are not scaled yet: they grow with the width, which stage 3 mends.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regard.stages.checks import check_sequence, check_settings


class UnscaledSelfAttention(nn.Module):
    """Self-attention with projections: `forward(x) -> (out, weights)`.

    `x` is (B, T, d_model). Queries, keys and values have the width `head_dim` (`d_model` if None). Returns
    the output (B, T, head_dim) and the attention weights (B, T, T).
    """

    def __init__(self, d_model: int, head_dim: int | None = None) -> None:
        super().__init__()
        check_settings(d_model=d_model, head_dim=head_dim)
        head_dim = head_dim or d_model
        self.W_q = nn.Linear(d_model, head_dim, bias=False)
        self.W_k = nn.Linear(d_model, head_dim, bias=False)  #: makes the keys, like W_q
        self.W_v = nn.Linear(d_model, head_dim, bias=False)  #: makes the values, like W_q

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The output (B, T, head_dim) and the weights (B, T, T) of tokens x (B, T, d_model)."""
        check_sequence("x", x, self.W_q)
        q = self.W_q(x)  #: what each token looks for, (B, T, head_dim)
        k = self.W_k(x)  #: what each token offers to be found by, (B, T, head_dim)
        v = self.W_v(x)  #: what each token hands over, (B, T, head_dim)
        scores = q @ k.mT  #: row: the query, column: the key, (B, T, T)
        weights = torch.softmax(scores, dim=-1)  #: each row sums to 1, (B, T, T)
        out = weights @ v  #: a mean of values for each token, (B, T, head_dim)
        return out, weights
