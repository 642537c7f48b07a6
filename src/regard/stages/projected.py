"""Stage 7, multi-head attention as models have it.

New: `W_o` mixes what the heads gathered, so that one head's findings can reach every channel of the model.
"""

from __future__ import annotations

from torch import Tensor, nn

from regard.stages.multi_head import MultiHeadAttention


class ProjectedMultiHeadAttention(MultiHeadAttention):
    """Causal multi-head attention with an output projection: `forward(X) -> out`, d_model in and out."""

    def __init__(self, d_model: int, num_heads: int, dropout: float = 0.1) -> None:
        super().__init__(d_model, d_model, num_heads, dropout)
        self.W_o = nn.Linear(d_model, d_model, bias=False)

    def forward(self, X: Tensor) -> Tensor:
        out: Tensor = self.W_o(super().forward(X))  # (B, T, d_model)
        return out
