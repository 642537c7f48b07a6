"""Stage 5, several heads with separate projections: each is softmax(Q Kᵀ / √d) V with its own weights.

New: the heads attend to the same tokens in different ways, and their outputs are concatenated.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regard.attention.arguments import check_whole_number
from regard.stages.checks import head_width
from regard.stages.head import Head


class SeparateHeads(nn.Module):
    """`num_heads` heads in a list: `forward(X) -> out`, (B, T, d_in) in, (B, T, d_out) out.

    T is at most `block_size`; `dropout` is the probability with which a weight is dropped in training. Each
    `Head` of stage 4 projects X to q, k and v (B, T, d_out / num_heads), computes the weights softmax(q @
    k.mT / √d) over the tokens so far, and returns weights @ v.
    """

    def __init__(self, d_in: int, d_out: int, num_heads: int, block_size: int, dropout: float = 0.1) -> None:
        super().__init__()
        check_whole_number("d_in", d_in)
        d_head = head_width(d_out, num_heads)
        self.heads = nn.ModuleList(Head(d_in, d_head, block_size, dropout) for _ in range(num_heads))

    def forward(self, X: Tensor) -> Tensor:
        """The concatenated outputs of the heads (B, T, d_out) for tokens X (B, T, d_in)."""
        return torch.cat([head(X) for head in self.heads], dim=-1)  # (B, T, d_out)
