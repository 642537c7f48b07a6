"""Mask tensors as the simplest rule that says the same: `causal & padding(…)` where a tensor says no more."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.attention.masks import Dense, Padding, Relative, causal
from regard.attention.rules import Mask, full, grid


def as_rule(mask: Tensor) -> Mask:
    """The rule for a tensor that broadcasts to (B, H, T, S): booleans say who may look, floats add."""
    mask = _narrow(mask.view((1,) * (4 - mask.ndim) + mask.shape))
    if mask.dtype == torch.bool:
        allowed = mask
    else:
        # Some models hide with the least number that there is, which leaves a row that sees nothing open.
        mask = mask.masked_fill(mask <= torch.finfo(mask.dtype).min / 2, -torch.inf)
        allowed = mask == 0
        if not bool((allowed | (mask == -torch.inf)).all()):
            return Dense(mask)
    return _known(allowed) or Dense(allowed)


def as_bias(bias: Tensor) -> Mask:
    """The rule for numbers (B, H, T, S) that are added to scores: by distance, if that is all they are."""
    if not bias.requires_grad and not bool(bias.any()):
        return full
    B, S = len(bias), bias.shape[-1]
    if B > 1 or bias.requires_grad or not torch.equal(bias[..., 1:, 1:], bias[..., :-1, :-1]):
        return Dense(bias)
    # One row and one column hold every distance there is: queries stand at the end of the keys.
    table = torch.cat([bias[0, :, 1:, 0].flip(-1), bias[0, :, 0]], -1)  # (H, T − 1 + S)
    return Relative(table, S - 1)


def _known(allowed: Tensor) -> Mask | None:
    """The rule with a name that allows just this, (B, H, T, S), if there is one."""
    _, H, T, S = allowed.shape
    if bool(allowed.all()):
        return full
    if H > 1:
        return None
    if T == 1:
        return Padding(allowed[:, 0, 0])
    seen = allowed.any(2)[:, 0]  # (B, S) the keys that somebody may look at
    for order in (causal,) if T == S else (causal.top_left, causal):
        ordered = order.allowed(grid(slice(0, T), slice(0, S), (1, 1, T, S), allowed.device))  # (1, 1, T, S)
        real = seen | ~ordered.any(2)[:, 0]  # a key that comes after every query may be real
        if torch.equal(allowed, ordered & real[:, None, None]):
            return order if bool(real.all()) else order & Padding(real)
    return None


def _narrow(mask: Tensor) -> Tensor:
    """The same without the axes along which it does not vary, as one entry that stands for all."""
    for dim in (0, 1, 2):
        first = mask.narrow(dim, 0, 1)
        if mask.shape[dim] > 1 and (mask.stride(dim) == 0 or bool((mask == first).all())):
            mask = first
    return mask
