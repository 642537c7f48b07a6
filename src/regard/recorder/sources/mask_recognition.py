"""Mask tensors as the simplest rule that says the same: `causal & padding(…)` where a tensor says no more.

A tensor is read once, however many layers share it. Whoever makes mask tensors from a description can put the
description down in `origins`; it is then believed if every entry of the tensor agrees with it.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from regard.attention.masks.base import Mask, full, grid
from regard.attention.masks.named import Padding, Relative, TensorMask, Window, causal

CHUNK = 1024  # rows of a mask that are compared at a time


class MaskReading(NamedTuple):
    """What a mask tensor says of T queries and S keys."""

    rule: Mask
    keys: int
    """How many of the keys there are to see: a static cache holds places for more."""
    blind: Tensor | None
    """The queries that may look at nothing, which broadcasts to (B, H, T); None where there are none."""
    finite: bool
    """Whether finite numbers alone hide everything from one of those, so that its row has a softmax."""


class Origin(NamedTuple):
    """What a mask tensor was made from: the rule, and how many of the keys it speaks of."""

    rule: Mask
    keys: int


origins: MutableMapping[Tensor, Callable[[], Origin]] = WeakIdKeyDictionary()
"""What made a mask tensor, asked only if somebody reads the tensor."""
_readings: MutableMapping[Tensor, tuple[int, int, tuple[int, int], MaskReading]] = WeakIdKeyDictionary()


def read_mask(mask: Tensor, T: int, S: int) -> MaskReading:
    """The rule for a tensor that broadcasts to (B, H, T, S): booleans say who may look, floats add."""
    # Some ways to write to a tensor are not counted: how much it hides is compared as well.
    version = (0 if mask.is_inference() else mask._version, int(hidden(mask.detach()).sum()))
    if (kept := _readings.get(mask)) is not None and kept[:3] == (T, S, version):
        return kept[3]
    whole = mask.detach().view((1,) * (4 - mask.ndim) + mask.shape)
    whole = whole[..., :S].expand(-1, -1, -1, S)  # one entry may stand for all keys
    out_of_sight = hidden(whole)
    nothing = out_of_sight.all(-1)
    blind = nothing if bool(nothing.any()) else None
    finite = mask.is_floating_point() and bool((nothing & whole.isfinite().all(-1)).any())
    origin = origins[mask]() if mask in origins else None
    if origin is not None and _agrees(origin, out_of_sight):
        found = MaskReading(*origin, blind, finite)
    else:
        found = MaskReading(as_rule(whole, T), S, blind, finite)
    _readings[mask] = (T, S, version, found)
    return found


def hidden(mask: Tensor) -> Tensor:
    """Where a mask tensor forbids a query to look: False, −inf, or about the least number that there is.

    A row of such numbers hides all but the greatest, if there is one.
    """
    if mask.dtype == torch.bool:
        return ~mask
    low = mask <= torch.finfo(mask.dtype).min / 2
    rows = low.all(-1, keepdim=True)
    if not bool(rows.any()):
        return low
    greatest = mask == mask.amax(-1, keepdim=True)
    return low & ~(rows & greatest & (greatest.sum(-1, keepdim=True) == 1) & (mask.shape[-1] > 1))


def _agrees(origin: Origin, out_of_sight: Tensor) -> bool:
    """Whether a rule over the first keys says what the tensor (B, H, T, S) says, of every entry."""
    B, H, T, _ = out_of_sight.shape
    if origin.rule.biased or origin.rule.shape_error(B, H, T, origin.keys) is not None:
        return False
    if not bool(out_of_sight[..., origin.keys :].all()):
        return False
    for first in range(0, T, CHUNK):
        rows = range(first, min(first + CHUNK, T))
        ours = origin.rule.tile(rows, range(origin.keys), (B, H, T, origin.keys), device=out_of_sight.device)
        theirs = out_of_sight[:, :, first : first + CHUNK, : origin.keys]
        if not bool((ours != theirs).all()):
            return False
    return True


def as_rule(mask: Tensor, T: int | None = None) -> Mask:
    """The rule for a tensor that broadcasts to (B, H, T, S): booleans say who may look, floats add.

    Where a tensor has one row for all, only T says whether there is more than one query.
    """
    mask = _narrow(mask.view((1,) * (4 - mask.ndim) + mask.shape))
    # Some models hide with the least number that there is, which leaves a row that sees nothing open.
    out_of_sight = hidden(mask)
    allowed = _narrow(~out_of_sight)
    rule = _known(allowed) or TensorMask(allowed)
    if mask.dtype == torch.bool or bool((out_of_sight | (mask == 0)).all()):
        return rule
    bias = _by_distance(mask, out_of_sight) if mask.shape[2] > 1 or T == 1 else None
    if bias is None:
        return TensorMask(mask.masked_fill(out_of_sight, -torch.inf))
    return bias if rule is full else rule & bias


def _by_distance(bias: Tensor, out_of_sight: Tensor) -> Mask | None:
    """The rule for numbers (B, H, T, S) that depend, where a query may look, on the distance alone."""
    _, H, T, S = bias.shape
    if bias.requires_grad:
        return None
    # A few rows hold every distance: the last, and in each text the first that may look at something.
    looks = ~out_of_sight.all(-1).all(1)  # (B, T)
    rows = torch.cat([looks.int().argmax(-1), looks.new_tensor([T - 1], dtype=torch.long)])
    distance = torch.arange(S, device=bias.device) - torch.arange(T, device=bias.device)[:, None] + T - 1
    seen = bias[:, :, rows].masked_fill(out_of_sight[:, :, rows], -torch.inf)  # (B, H, rows, S)
    index = distance[rows].expand_as(seen).transpose(0, 1).reshape(H, -1)
    table = bias.new_full((H, T + S - 1), -torch.inf)
    table.scatter_reduce_(1, index, seen.transpose(0, 1).reshape(H, -1), "amax")
    table.masked_fill_(table == -torch.inf, 0.0)  # distances that nobody sees
    for first in range(0, T, CHUNK):
        some = slice(first, first + CHUNK)
        if not bool((out_of_sight[:, :, some] | (table[:, distance[some]] == bias[:, :, some])).all()):
            return None
    return Relative(table, S - 1)  # queries stand at the end of the keys


def as_bias(bias: Tensor) -> Mask:
    """The rule for numbers (B, H, T, S) that are added to scores: by distance, if that is all they are."""
    if bias.requires_grad:
        return TensorMask(bias)
    if not bool(bias.any()):
        return full
    if bias.shape[2] == 1:
        return TensorMask(bias)
    return _by_distance(bias, torch.zeros_like(bias, dtype=torch.bool)) or TensorMask(bias)


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
    if T != S:
        return None
    size = int(allowed.sum(-1).max())
    near = (causal & Window(size)).allowed(grid(slice(0, T), slice(0, S), (1, 1, T, S), allowed.device))
    if torch.equal(allowed, near & seen[:, None, None]):
        windowed = causal & Window(size)
        return windowed if bool(seen.all()) else windowed & Padding(seen)
    return None


def _narrow(mask: Tensor) -> Tensor:
    """The same without the axes along which it does not vary, as one entry that stands for all."""
    for dim in (0, 1, 2):
        first = mask.narrow(dim, 0, 1)
        if mask.shape[dim] > 1 and (mask.stride(dim) == 0 or bool((mask == first).all())):
            mask = first
    return mask
