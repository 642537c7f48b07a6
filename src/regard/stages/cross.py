"""Stage 7, cross-attention: softmax(Q Kᵀ / √d) V with the keys and values of another sequence.

New: there are two sequences. The one difference from `SelfAttention` of stage 3 is that `k` and `v` are
projected from `context`; several heads and `W_o` are added as before. A decoder reads its encoder this way.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from regard.attention.masks.base import Mask
from regard.stages.checks import check_context, check_settings, visible_keys
from regard.stages.masking import efficient_masking


class CrossAttention(nn.Module):
    """One head that reads another sequence: `forward(x, context, mask=None) -> (out, weights)`.

    `x` is (B, T, d_model) and `context` (B, S, d_context); `d_context` is `d_model` if None. `mask`,
    which the lesson does not have, is a mask such as `regard.padding(lengths)`, or a boolean tensor (T, S) or
    (B, T, S), True = visible. Returns the output (B, T, d_model) and the attention weights (B, T, S).
    """

    def __init__(self, d_model: int, d_context: int | None = None) -> None:
        super().__init__()
        check_settings(d_model=d_model, d_context=d_context)
        d_context = d_context or d_model
        self.W_q = nn.Linear(d_model, d_model, bias=False)
        self.W_k = nn.Linear(d_context, d_model, bias=False)  #: for keys, whose tokens have d_context numbers
        self.W_v = nn.Linear(d_context, d_model, bias=False)  #: for values

    def forward(self, x: Tensor, context: Tensor, mask: Mask | Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The output and the weights of x on `context`, under `mask`; the shapes are those of the class."""
        check_context(x, context, self.W_q, self.W_k)
        q = self.W_q(x)  #: the queries, (B, T, d_model)
        k, v = self.W_k(context), self.W_v(context)  #: the keys and the values, (B, S, d_model) each
        scores = q @ k.mT / math.sqrt(k.shape[-1])  #: scaled dot products, (B, T, S)
        weights = torch.softmax(scores, dim=-1)  # (B, T, S) each row sums to 1
        if mask is not None:  # not in the lesson: keys are hidden as in stage 4
            visible = visible_keys(mask, q, k)  # (T, S) or (B, T, S)
            weights = efficient_masking(scores, visible)  # (B, T, S) 0 where a key is hidden
            v = v.masked_fill(~visible.any(-2).unsqueeze(-1), 0.0)  # padding may hold NaN, and 0 · NaN is NaN
        return weights @ v, weights  # (B, T, d_model)
