"""Cross-attention, softmax(Q Kᵀ / √d) V with keys and values of another sequence.

The one difference from `SelfAttention` is that `k` and `v` are projected from `context`. A decoder reads its
encoder this way.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from regard.attention.arguments import check_whole_number
from regard.attention.masks.base import Mask
from regard.attention.steps import softmax
from regard.stages.checks import check_sequence, visible_keys


class CrossAttention(nn.Module):
    """One head that reads another sequence: `forward(x, context, mask=None) -> (out, attn)`.

    `x` is (B, T, d_model) and `context` (B, S, d_context). `mask` is a mask such as
    `regard.padding(lengths)`, or a boolean tensor (T, S) or (B, T, S), True = visible. Returns the output (B,
    T, d_model) and the attention weights (B, T, S).
    """

    def __init__(self, d_model: int, d_context: int | None = None) -> None:
        super().__init__()
        d_model = check_whole_number("d_model", d_model)
        d_context = d_model if d_context is None else check_whole_number("d_context", d_context)
        self.W_Q = nn.Linear(d_model, d_model, bias=False)
        self.W_K = nn.Linear(d_context, d_model, bias=False)
        self.W_V = nn.Linear(d_context, d_model, bias=False)

    def forward(self, x: Tensor, context: Tensor, mask: Mask | Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The output and the weights of x on `context`, under `mask`; the shapes are those of the class."""
        check_sequence("x", x, self.W_Q)
        check_sequence("context", context, self.W_K)
        if context.shape[:-2] != x.shape[:-2]:
            raise ValueError(
                f"context: expected the batch of x, {tuple(x.shape[:-2])}, got {tuple(context.shape)} "
                f"beside x {tuple(x.shape)}"
            )
        q = self.W_Q(x)  # (B, T, d_model)
        k, v = self.W_K(context), self.W_V(context)  # (B, S, d_model) each
        scores = q @ k.mT / math.sqrt(k.shape[-1])  # (B, T, S)
        if mask is not None:
            visible = visible_keys(mask, q, k)  # (T, S) or (B, T, S)
            scores = scores.masked_fill(~visible, -torch.inf)
            v = v.masked_fill(~visible.any(-2).unsqueeze(-1), 0.0)  # padding may hold NaN, and 0 · NaN is NaN
        attn = softmax(scores)  # (B, T, S) each row sums to 1, or is 0 where no key is visible
        return attn @ v, attn  # (B, T, d_model)
