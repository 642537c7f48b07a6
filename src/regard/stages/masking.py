"""Two ways to mask scores, which agree wherever both are defined.

Naive masking applies softmax to the hidden scores too. Where one of them is far above the visible ones, these
underflow to 0, and 0 / 0 is NaN. Efficient masking hides scores before softmax, and needs one pass less.
"""

from __future__ import annotations

import torch
from torch import Tensor

from regard.attention.steps import softmax


def naive_masking(scores: Tensor, mask: Tensor) -> Tensor:
    """Softmax of scores (…, T, S), then zeros where `mask` is False, then renormalise. True = visible."""
    _check(scores, mask)
    weights = torch.softmax(scores, dim=-1).masked_fill(~mask, 0.0)  # (B, T, S) rows sum to 1 or less
    return weights / weights.sum(dim=-1, keepdim=True)


def efficient_masking(scores: Tensor, mask: Tensor) -> Tensor:
    """−inf in scores (…, T, S) where `mask` is False, then softmax. True = visible.

    >>> scores, mask = torch.tensor([[1.0, 2.0, 300.0]]), torch.tensor([[True, True, False]])
    >>> efficient_masking(scores, mask)
    tensor([[0.2689, 0.7311, 0.0000]])
    >>> naive_masking(scores, mask)
    tensor([[nan, nan, nan]])
    """
    _check(scores, mask)
    return softmax(scores.masked_fill(~mask, -torch.inf))


def _check(scores: Tensor, mask: Tensor) -> None:
    if not scores.is_floating_point():
        raise ValueError(f"scores: expected a float tensor, got {scores.dtype}")
    if mask.dtype != torch.bool:
        raise ValueError(f"mask: expected booleans, True = visible, got {mask.dtype}: pass .bool()")
    shapes = tuple(scores.shape), tuple(mask.shape)
    fits = len(shapes[1]) <= len(shapes[0]) and all(
        m in (1, s) for s, m in zip(shapes[0][::-1], shapes[1][::-1], strict=False)
    )
    if not fits:
        raise ValueError(f"mask: expected a shape that broadcasts to scores {shapes[0]}, got {shapes[1]}")
