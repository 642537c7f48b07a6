"""Stage 2, trainable self-attention.

New: a token is projected three times, so that what it looks for (query), what it offers (key) and what it
hands over (value) can each be learned; and the scores are divided by the root of their width.
"""

from __future__ import annotations

from torch import Tensor, nn

from regard.attention.masks.base import Mask
from regard.attention.steps import scaled_dot_product_attention
from regard.stages.checks import check_sequence, check_size


class SelfAttention(nn.Module):
    """One head of self-attention with its weights: `forward(x, mask=None) -> (out, attn)`.

    `mask` is a rule such as `regard.causal`, or a boolean tensor (T, T) or (B, T, T), True = may look.
    """

    def __init__(self, d_model: int) -> None:
        super().__init__()
        check_size("d_model", d_model)
        self.W_Q = nn.Linear(d_model, d_model, bias=False)
        self.W_K = nn.Linear(d_model, d_model, bias=False)
        self.W_V = nn.Linear(d_model, d_model, bias=False)

    def forward(self, x: Tensor, mask: Mask | Tensor | None = None) -> tuple[Tensor, Tensor]:
        check_sequence("x", x, self.W_Q)
        q, k, v = self.W_Q(x), self.W_K(x), self.W_V(x)  # (B, T, d_model)
        return one_head(q, k, v, mask)  # (B, T, d_model), (B, T, T)


def one_head(
    q: Tensor, k: Tensor, v: Tensor, mask: Mask | Tensor | None = None, dropout: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Attention of a single head, (B, T, D) instead of (B, H, T, D): `(output, weights)`."""
    if isinstance(mask, Tensor) and mask.ndim == 3:
        mask = mask.unsqueeze(-3)  # (B, 1, T, S)
    q, k, v = q.unsqueeze(-3), k.unsqueeze(-3), v.unsqueeze(-3)  # (B, 1, T, D)
    output, weights = scaled_dot_product_attention(q, k, v, mask, dropout=dropout)
    return output.squeeze(-3), weights.squeeze(-3)
