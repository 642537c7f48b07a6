"""Reductions of a map by the Triton kernels on a GPU; None where they do not support it.

The callers then compute the same tile by tile in PyTorch.
"""

from __future__ import annotations

import torch
from torch import Tensor

from regard.attention.backends.triton import diagonal as triton_diagonal
from regard.attention.backends.triton import launch
from regard.attention.backends.triton import row_sums as triton_row_sums
from regard.attention.backends.triton import statistics as triton_statistics
from regard.attention.backends.triton import topk as triton_topk
from regard.attention.masks.base import Mask, full
from regard.maps.data import MapData


def supported_mask(m: MapData, mask: Mask | None = None) -> Mask | None:
    """The map's mask, or the narrower `mask`, as the kernels take it, or None if they do not support it."""
    # The kernels have no float64, in which heads with large scores are computed.
    if m.device.type != "cuda" or m.dtype != torch.float32:
        return None
    mask = m.mask if mask is None else mask
    if mask.band(*m.matrix[2:]) is None:  # a band is as simple as a mask can be
        mask = mask.simplified(m.matrix)
    return mask if launch.unsupported_map_reason(m.q, m.k, mask) is None else None


def statistics(m: MapData) -> tuple[Tensor, Tensor, Tensor, Tensor] | None:
    """Entropy and distance of every row, what every key receives, and the largest score of every row."""
    simple = supported_mask(m)
    if simple is None:
        return None
    return triton_statistics.statistics(m.q, m.k, m.lse, simple, m.scale, m.softcap, m.first_position)


def row_statistics(m: MapData) -> tuple[Tensor, Tensor] | None:
    """Entropy and distance of every row."""
    simple = supported_mask(m)
    if simple is None:
        return None
    return triton_statistics.row_statistics(m.q, m.k, m.lse, simple, m.scale, m.softcap, m.first_position)


def row_sums(m: MapData, mask: Mask | None = None, gain: Tensor | None = None) -> Tensor | None:
    """The sum (B, H, T) of every row under its own mask or a narrower one, times `gain` (B, H, S)."""
    simple = supported_mask(m, mask)
    if simple is None:
        return None
    return triton_row_sums.row_sums(m.q, m.k, m.lse, simple, m.scale, m.softcap, gain)


def pair_sums(m: MapData, ids: Tensor, key_ids: Tensor) -> Tensor | None:
    """The mass of every query on earlier keys whose number is its own, (2, B, H, T), by two tables at once.

    `ids` (B, S) has a number for each position, the last T of them the queries', and `key_ids` (2, B, S) two
    for each key.
    """
    simple = supported_mask(m)
    if simple is None or m.first_position != m.matrix[3] - m.matrix[2]:
        return None
    return triton_row_sums.pair_sums(m.q, m.k, m.lse, simple, m.scale, m.softcap, ids, key_ids)


def topk(m: MapData, k: int) -> tuple[Tensor, Tensor] | None:
    """The k largest weights of every row and their keys, (B, H, T, k) each; key −1 where the weight is 0."""
    simple = supported_mask(m) if k <= triton_topk.MOST else None
    if simple is None:
        return None
    return triton_topk.topk(m.q, m.k, m.lse, simple, m.scale, m.softcap, k)


def diagonal(m: MapData, rows: slice, keys: slice) -> Tensor | None:
    """The weights of each of some rows on the key of the same number, (B, H, rows), if nothing is hidden."""
    q, k = m.q[:, :, rows], m.k[:, :, keys]
    if m.device.type != "cuda" or m.mask.biased or 0 in q.shape:
        return None
    if launch.unsupported_scores_reason(q, full) is not None:
        return None
    return triton_diagonal.diagonal(q, k, m.lse[:, :, rows], m.scale, m.softcap)
