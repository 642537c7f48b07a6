"""Cross-attention: the queries come from one sequence, the keys and values from another.

The one difference from `SelfAttention` is where `k` and `v` come from. A decoder reads its encoder this way.
"""

from __future__ import annotations

from torch import Tensor, nn

from regard.attention.masks.base import Mask
from regard.stages.checks import check_sequence, check_size
from regard.stages.trainable import one_head


class CrossAttention(nn.Module):
    """One head that reads another sequence: `forward(x, context, mask=None) -> (out, attn)`.

    `mask` is a rule such as `regard.padding(lengths)`, or a boolean tensor (T, S) or (B, T, S).
    """

    def __init__(self, d_model: int, d_context: int | None = None) -> None:
        super().__init__()
        check_size("d_model", d_model)
        d_context = d_model if d_context is None else check_size("d_context", d_context)
        self.W_Q = nn.Linear(d_model, d_model, bias=False)
        self.W_K = nn.Linear(d_context, d_model, bias=False)
        self.W_V = nn.Linear(d_context, d_model, bias=False)

    def forward(self, x: Tensor, context: Tensor, mask: Mask | Tensor | None = None) -> tuple[Tensor, Tensor]:
        check_sequence("x", x, self.W_Q)
        check_sequence("context", context, self.W_K)
        if context.shape[:-2] != x.shape[:-2]:
            raise ValueError(
                f"context: expected the batch of x, {tuple(x.shape[:-2])}, got {tuple(context.shape)} "
                f"beside x {tuple(x.shape)}"
            )
        q, k, v = self.W_Q(x), self.W_K(context), self.W_V(context)  # (B, T, d_model), (B, S, d_model) twice
        return one_head(q, k, v, mask)  # (B, T, d_model), (B, T, S)
