"""The example of the walkthrough: six tokens of width 3, and projections to width 2."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor, nn

from regard.stages.multi_head import MultiHeadAttention

AnyLayer = TypeVar("AnyLayer", bound=nn.Module)

TOKENS = ("Each", "model", "learns", "through", "many", "rounds")
X = torch.tensor(
    [
        [0.31, 0.82, 0.45],
        [0.73, 0.39, 0.81],
        [0.65, 0.47, 0.78],
        [0.18, 0.71, 0.29],
        [0.85, 0.22, 0.14],
        [0.09, 0.76, 0.62],
    ],
    device="cpu",
)  # (T, d_model)
WQ = torch.tensor([[0.5, 0.8], [0.3, 0.1], [0.2, 0.6]], device="cpu")  # (d_model, head_dim), so q = X @ WQ
WK = torch.tensor([[0.4, 0.3], [0.1, 0.7], [0.5, 0.2]], device="cpu")
WV = torch.tensor([[0.2, 0.5], [0.3, 0.1], [0.4, 0.3]], device="cpu")


def project(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The queries, keys and values of tokens x (T, 3), each (T, 2)."""
    return x @ WQ, x @ WK, x @ WV


def with_weights(layer: AnyLayer, **projections: Tensor) -> AnyLayer:
    """Copy projections such as W_q=WQ, (d_model, head_dim) each, into a stage in evaluation mode; returns it.

    The stage moves to where the projections are. `nn.Linear` stores a projection as (head_dim, d_model).
    """
    with torch.no_grad():
        for name, projection in projections.items():
            layer.get_parameter(f"{name}.weight").copy_(projection.T)
            layer.to(projection.device)
    return layer.eval()


def with_example_weights(layer: AnyLayer) -> AnyLayer:
    """Copy the example's projections into a stage that projects width 3 to width 2; returns it."""
    return with_weights(layer, W_q=WQ, W_k=WK, W_v=WV)


def multi_head(num_heads: int) -> MultiHeadAttention:
    """The example's projections, shared out between `num_heads` heads."""
    return with_example_weights(MultiHeadAttention(d_model=3, d_out=2, num_heads=num_heads, dropout=0.0))
