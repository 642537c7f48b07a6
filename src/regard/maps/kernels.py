"""Reductions of a map by the Triton kernels on a GPU; None where they do not support it.

The callers then compute the same tile by tile in PyTorch.
"""

from __future__ import annotations

import torch
from torch import Tensor

from regard.attention.backends.triton import column_sums as triton_column_sums
from regard.attention.backends.triton import launch, row_reductions
from regard.attention.backends.triton import pool as triton_pool
from regard.attention.masks.base import full
from regard.maps.data import MapData


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


def statistics(m: MapData) -> tuple[Tensor, Tensor, Tensor, Tensor] | None:
    """Entropy and distance of every row, what every key receives, and the largest score of every row."""
    served = kernel_map(m)
    return None if served is None else row_reductions.statistics(served, m.first_position)


def row_statistics(m: MapData) -> tuple[Tensor, Tensor] | None:
    """Entropy and distance of every row."""
    served = kernel_map(m)
    return None if served is None else row_reductions.row_statistics(served, m.first_position)


def row_sums(m: MapData, gain: Tensor | None = None) -> Tensor | None:
    """The sum (B, H, T) of every row, times `gain` (B, H, S)."""
    served = kernel_map(m)
    return None if served is None else row_reductions.row_sums(served, gain)


def pair_sums(m: MapData, ids: Tensor, key_ids: Tensor) -> Tensor | None:
    """The mass of every query on earlier keys whose number is its own, (2, B, H, T), by two tables at once.

    `ids` (B, S) has a number for each position, the last T of them the queries', and `key_ids` (2, B, S) two
    for each key.
    """
    served = kernel_map(m)
    if served is None or m.first_position != m.matrix[3] - m.matrix[2]:
        return None
    return row_reductions.pair_sums(served, ids, key_ids)


def column_sums(m: MapData, row_weights: Tensor, rows: Tensor | None) -> Tensor | None:
    """What every key receives, (B, H, S), each row times its weight (B, H, T); of some `rows`, or of all."""
    served = kernel_map(m)
    return None if served is None else triton_column_sums.column_sums(served, row_weights, rows)


def pool(m: MapData, rows: Tensor, cols: Tensor, gain: Tensor | None) -> tuple[Tensor, Tensor] | None:
    """Mass and peak of the bins rows × cols, each key times `gain` (B, H, S)."""
    served = kernel_map(m)
    return None if served is None else triton_pool.pool(served, rows, cols, gain)


def summary(m: MapData, rows: Tensor, cols: Tensor) -> tuple[Tensor, ...] | None:
    """What `pool` and `statistics` return, from one pass; None also where the bins do not fill blocks."""
    served = kernel_map(m)
    return None if served is None else triton_pool.summary(served, m.first_position, rows, cols)


def topk(m: MapData, k: int) -> tuple[Tensor, Tensor] | None:
    """The k largest weights of every row and their keys, (B, H, T, k) each; key −1 where the weight is 0."""
    served = kernel_map(m) if k <= row_reductions.MOST else None
    return None if served is None else row_reductions.topk(served, k)


def diagonal(m: MapData, rows: slice, keys: slice) -> Tensor | None:
    """The weights of each of some rows on the key of the same number, (B, H, rows), if nothing is hidden."""
    q, k = m.q[:, :, rows], m.k[:, :, keys]
    if m.device.type != "cuda" or m.mask.biased or 0 in q.shape:
        return None
    if launch.unsupported_scores_reason(q, full) is not None:
        return None
    return row_reductions.diagonal(q, k, m.lse[:, :, rows], m.scale, m.softcap)
