"""Projections for the running example whose maps differ visibly; those of `stages.example` are nearly flat.

A head that seeks channel i gives its weight to tokens whose number i is above their number j. Every query is
the sum of a token's numbers, every key the difference of two of them.
"""

from __future__ import annotations

import torch
from torch import Tensor

SHARPNESS = 3.0


def seeking_queries() -> Tensor:
    """Return W_q (3, 2): the query of a token is the sum of its numbers, and 0."""
    return torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0]])


def seeking_keys(high: int, low: int) -> Tensor:
    """Return W_k (3, 2): the key of a token is large if its number `high` is above its number `low`."""
    weight = torch.zeros(3, 2)
    weight[high, 0], weight[low, 0] = SHARPNESS, -SHARPNESS
    return weight
