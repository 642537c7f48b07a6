"""Stage 4, one head among several to come.

New: the head has a width of its own, narrower than the model's, and in training some weights are dropped.
"""

from __future__ import annotations

from torch import Tensor, nn

from regard.attention.masks.named import causal_mask
from regard.stages.checks import check_dropout, check_sequence, check_size
from regard.stages.trainable import one_head


class Head(nn.Module):
    """One causal head: `forward(x) -> out`, (B, T, n_embd) in, (B, T, head_size) out."""

    tril: Tensor  # (block_size, block_size) True = may look

    def __init__(self, n_embd: int, head_size: int, block_size: int, dropout: float = 0.1) -> None:
        super().__init__()
        check_size("n_embd", n_embd)
        check_size("head_size", head_size)
        check_size("block_size", block_size)
        self.block_size = block_size
        self.key = nn.Linear(n_embd, head_size, bias=False)
        self.query = nn.Linear(n_embd, head_size, bias=False)
        self.value = nn.Linear(n_embd, head_size, bias=False)
        self.register_buffer("tril", causal_mask(block_size), persistent=False)
        self.dropout = nn.Dropout(check_dropout(dropout))

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x)[0]  # (B, T, head_size)

    def attention(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The output and the weights (B, T, T) that made it, some of them dropped while training."""
        check_sequence("x", x, self.key, longest=self.block_size)
        T = x.shape[-2]
        q, k, v = self.query(x), self.key(x), self.value(x)  # (B, T, head_size)
        dropout = self.dropout.p if self.training else 0.0
        return one_head(q, k, v, self.tril[:T, :T], dropout)
