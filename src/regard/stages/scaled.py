"""Stage 3, scaled self-attention: softmax(Q Kᵀ / √d) V.

New: the scores are divided by √d, where d is the width of a query. A score is a sum of d products, so its
standard deviation grows like √d, and without the division softmax would become sharper with every channel.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from regard.attention.masks.base import Mask
from regard.stages.checks import check_sequence, check_settings, visible_keys
from regard.stages.masking import efficient_masking


class SelfAttention(nn.Module):
    """Self-attention as published: `forward(x, mask=None) -> (out, weights)`.

    `x` is (B, T, d_model). Queries, keys and values have the width `head_dim` (`d_model` if None). `mask`,
    which the lesson does not have, is one of Regard's masks, or a boolean tensor (T, T) or (B, T, T),
    True = visible. Returns the output (B, T, head_dim) and the attention weights (B, T, T).
    """

    def __init__(self, d_model: int, head_dim: int | None = None) -> None:
        super().__init__()
        check_settings(d_model=d_model, head_dim=head_dim)
        head_dim = head_dim or d_model
        self.W_q = nn.Linear(d_model, head_dim, bias=False)
        self.W_k = nn.Linear(d_model, head_dim, bias=False)
        self.W_v = nn.Linear(d_model, head_dim, bias=False)

    def forward(self, x: Tensor, mask: Mask | Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The output and the weights of x under `mask`; the shapes are those of the class."""
        check_sequence("x", x, self.W_q)
        q, k, v = self.W_q(x), self.W_k(x), self.W_v(x)  # (B, T, head_dim) each
        scores = q @ k.mT / math.sqrt(k.shape[-1])  #: of every query and key, over √head_dim, (B, T, T)
        weights = torch.softmax(scores, dim=-1)  #: each row sums to 1, (B, T, T)
        if mask is not None:  # not in the lesson: keys are hidden as in stage 4
            visible = visible_keys(mask, q, k)  # (T, T) or (B, T, T)
            weights = efficient_masking(scores, visible)  # (B, T, T) 0 where a key is hidden
            v = v.masked_fill(~visible.any(-2).unsqueeze(-1), 0.0)  # padding may hold NaN, and 0 · NaN is NaN
        out = weights @ v  #: a mean of values for each token, (B, T, head_dim)
        return out, weights
