"""Stage 4, two ways to mask scores, which agree wherever both are defined.

Naive masking applies softmax to the hidden scores too. Where one of them is far above the visible ones, these
underflow to 0, and 0 / 0 is NaN. Efficient masking hides scores before softmax, and needs one pass less.
"""

from __future__ import annotations

import torch
from torch import Tensor

from regard.stages.checks import check_mask


def naive_masking(scores: Tensor, mask: Tensor) -> Tensor:
    """Softmax of scores (…, T, S), then zeros where `mask` is False, then renormalise. True = visible."""
    check_mask(scores, mask)
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
    check_mask(scores, mask)
    weights = torch.softmax(scores.masked_fill(~mask, -torch.inf), dim=-1)  # (B, T, S)
    return weights.masked_fill(~mask, 0.0)  # a row that sees no key is NaN before this line, and zeros after
