"""Reductions of a map by the Triton kernels on a GPU; None where they do not support it.

The callers then compute the same tile by tile in PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from regard.attention.backends.triton import launch, row_reductions
from regard.attention.masks.base import full
from regard.maps.data import MapData

Result = TypeVar("Result")


def kernel_map(m: MapData) -> launch.KernelMap | None:
    """The map as the kernels take it; None if they do not support it."""
    # The kernels have no float64, in which heads with large scores are computed.
    if m.device.type != "cuda" or m.dtype != torch.float32:
        return None
    mask = m.mask
    if mask.band(*m.matrix[2:]) is None:  # a band is as simple as a mask can be
        mask = mask.simplified(m.matrix)
    if launch.unsupported_map_reason(m.q, m.k, mask) is not None:
        return None
    return launch.KernelMap(m.q, m.k, m.lse, mask, m.scale, m.softcap)


def run(kernel: Callable[..., Result], m: MapData, *arguments: Any) -> Result | None:
    """What a kernel gives for a map and its own arguments; None if the kernels do not support the map."""
    served = kernel_map(m)
    return None if served is None else kernel(served, *arguments)


def pair_sums(m: MapData, ids: Tensor, key_ids: Tensor) -> Tensor | None:
    """The mass of every query on earlier keys whose number is its own, (2, B, H, T), by two tables at once.

    `ids` (B, S) has a number for each position, the last T of them the queries', and `key_ids` (2, B, S) two
    for each key.
    """
    if m.first_position != m.matrix[3] - m.matrix[2]:
        return None
    return run(row_reductions.pair_sums, m, ids, key_ids)


def diagonal(m: MapData, rows: slice, keys: slice) -> Tensor | None:
    """The weights of each of some rows on the key of the same number, (B, H, rows), if nothing is hidden."""
    q, k = m.q[:, :, rows], m.k[:, :, keys]
    if m.device.type != "cuda" or m.mask.biased or 0 in q.shape:
        return None
    if launch.unsupported_scores_reason(q, full) is not None:
        return None
    return row_reductions.diagonal(q, k, m.lse[:, :, rows], m.scale, m.softcap)
