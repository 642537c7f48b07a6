"""Stage 5, several heads, each with projections of its own.

New: the heads look at the same tokens in different ways, and their outputs stand side by side.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regard.stages.checks import check_size, head_width
from regard.stages.head import Head


class SeparateHeads(nn.Module):
    """`num_heads` heads in a list: `forward(X) -> out`, (B, T, d_in) in, (B, T, d_out) out."""

    def __init__(self, d_in: int, d_out: int, num_heads: int, block_size: int, dropout: float = 0.1) -> None:
        super().__init__()
        check_size("d_in", d_in)
        d_head = head_width(d_out, num_heads)
        self.heads = nn.ModuleList(Head(d_in, d_head, block_size, dropout) for _ in range(num_heads))

    def forward(self, X: Tensor) -> Tensor:
        return torch.cat([head(X) for head in self.heads], dim=-1)  # (B, T, d_out)
