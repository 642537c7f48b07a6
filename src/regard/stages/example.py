"""The example of the walkthrough: six tokens of width 3, and projections to width 2."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.stages.multi_head import MultiHeadAttention

TOKENS = ("Each", "model", "learns", "through", "many", "rounds")
X = torch.tensor(
    [
        [0.31, 0.82, 0.45],
        [0.73, 0.39, 0.81],
        [0.65, 0.47, 0.78],
        [0.18, 0.71, 0.29],
        [0.85, 0.22, 0.14],
        [0.09, 0.76, 0.62],
    ]
)  # (T, d_in)
WQ = torch.tensor([[0.5, 0.8], [0.3, 0.1], [0.2, 0.6]])  # (d_in, d_out), so q = X @ WQ
WK = torch.tensor([[0.4, 0.3], [0.1, 0.7], [0.5, 0.2]])
WV = torch.tensor([[0.2, 0.5], [0.3, 0.1], [0.4, 0.3]])


def project(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The queries, keys and values of tokens x (T, 3), each (T, 2)."""
    return x @ WQ, x @ WK, x @ WV


def multi_head(num_heads: int) -> MultiHeadAttention:
    """The example's projections as a layer of `num_heads` heads; `nn.Linear` stores them as (d_out, d_in)."""
    layer = MultiHeadAttention(d_in=3, d_out=2, num_heads=num_heads, dropout=0.0)
    with torch.no_grad():
        for linear, W in ((layer.W_q, WQ), (layer.W_k, WK), (layer.W_v, WV)):
            linear.weight.copy_(W.T)
    return layer.eval()
