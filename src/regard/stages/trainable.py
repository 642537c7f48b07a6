"""Stage 2, trainable self-attention: softmax(Q Kᵀ / √d) V.

New: three learned projections turn a token into a query (what it looks for), a key (what it offers) and a
value (what it hands over). The scores are divided by √d, so that they do not grow with the width d.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from regard.attention.arguments import check_whole_number
from regard.attention.masks.base import Mask
from regard.attention.steps import softmax
from regard.stages.checks import check_sequence, visible_keys


class SelfAttention(nn.Module):
    """One head of self-attention with its weights: `forward(x, mask=None) -> (out, attn)`.

    `x` is (B, T, d_model). `mask` is a mask such as `regard.causal`, or a boolean tensor (T, T) or (B, T, T),
    True = visible. Returns the output (B, T, d_model) and the attention weights (B, T, T).
    """

    def __init__(self, d_model: int) -> None:
        super().__init__()
        d_model = check_whole_number("d_model", d_model)
        self.W_Q = nn.Linear(d_model, d_model, bias=False)
        self.W_K = nn.Linear(d_model, d_model, bias=False)
        self.W_V = nn.Linear(d_model, d_model, bias=False)

    def forward(self, x: Tensor, mask: Mask | Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The output and the weights of x under `mask`; the shapes are those of the class."""
        check_sequence("x", x, self.W_Q)
        q, k, v = self.W_Q(x), self.W_K(x), self.W_V(x)  # (B, T, d_model) each
        scores = q @ k.mT / math.sqrt(k.shape[-1])  # (B, T, T)
        if mask is not None:
            visible = visible_keys(mask, q, k)  # (T, T) or (B, T, T)
            scores = scores.masked_fill(~visible, -torch.inf)
            v = v.masked_fill(~visible.any(-2).unsqueeze(-1), 0.0)  # padding may hold NaN, and 0 · NaN is NaN
        attn = softmax(scores)  # (B, T, T) each row sums to 1, or is 0 where no key is visible
        return attn @ v, attn  # (B, T, d_model)
