"""The mask of a layer whose heads are spread over several files or devices, each with a mask of its own."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor

from regard.attention.masks.base import Mask


def join_heads(masks: Sequence[Mask], counts: Sequence[int], order: Sequence[int]) -> Mask | None:
    """The mask of the heads of several masks, or None if these differ in more than their heads.

    `counts` are the numbers of heads of each mask; `order` lists the heads of the result by their numbers
    among all of them.
    """
    mask = masks[0]
    # A class that is not stored may hold anything, as a function, whose equality means nothing.
    if not mask.is_storable() or any(type(other) is not type(mask) for other in masks):
        return None
    joined: dict[str, Any] = {}
    names = [field.name for field in dataclasses.fields(cast(Any, mask))]
    for name in names:
        values = [getattr(each, name) for each in masks]
        first, axis = values[0], mask.head_axes.get(name)
        alike = not isinstance(first, Mask) and all(_equal(first, value) for value in values[1:])
        if isinstance(first, Mask):
            joined[name] = join_heads(values, counts, order)
        # One entry that serves all heads stays one, if every mask has the same.
        elif axis is not None and (first.shape[axis] > 1 or not alike):
            joined[name] = _join_tensors(values, axis, counts, order)
        elif alike:
            joined[name] = first
        else:
            return None
        if joined[name] is None and first is not None:
            return None
    unchanged = all(joined[name] is getattr(mask, name) for name in names)
    return mask if unchanged else type(mask)(**joined)


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    return type(a) is type(b) and bool(a == b)


def _join_tensors(
    tensors: Sequence[Tensor], axis: int, counts: Sequence[int], order: Sequence[int]
) -> Tensor | None:
    """Tensors with an entry for each of `counts` heads, or one for all, as one of the heads `order`."""
    sizes = [-1] * tensors[0].ndim
    expanded = [x.expand(*sizes[:axis], n, *sizes[axis + 1 :]) for x, n in zip(tensors, counts, strict=True)]
    others = {(*x.shape[:axis], *x.shape[axis + 1 :], x.dtype) for x in expanded}
    if len(others) > 1:
        return None
    joined = torch.cat(expanded, axis)
    return joined.index_select(axis, torch.tensor(order, device=joined.device))
