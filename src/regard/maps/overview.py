"""Overviews of a whole map at any resolution, exactly: weights pooled into cells, mass and maximum.

This file chooses between the Triton kernels and the pass over tiles, which gives row statistics in the same
pass, and shares that pass out among the cores. The pass over one head is in `head_pass.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from regard.attention.arguments import check_whole_number
from regard.maps import head_pass, sweep
from regard.maps.bins import make_bins
from regard.maps.data import MapData
from regard.maps.head_pass import HeadPass, MaskTiles, PooledCells, RunStatistics
from regard.maps.sweep import RowStatistics

LARGE = 1 << 20  # weights a head: below, many heads at a time cost less than a pass each

Region = tuple[slice, slice]
"""Some rows and some keys of a map: `(slice(0, 128), slice(None))`."""


class Overview(NamedTuple):
    """The mean row mass and the largest weight of every cell."""

    mass: Tensor  # (B, H, rows, cols)
    max: Tensor  # (B, H, rows, cols)


class MapSummary(NamedTuple):
    """Overviews and statistics of every head."""

    mass: Tensor  # (B, H, rows, cols)
    max: Tensor  # (B, H, rows, cols)
    entropy: Tensor  # (B, H, T)
    distance: Tensor  # (B, H, T)
    received: Tensor  # (B, H, S)


def pool(m: MapData, rows: int, cols: int) -> Overview:
    """Both overviews of every head, (B, H, rows, cols)."""
    _check_cells(m, rows, cols)
    overview = _pool_on_gpu(m, rows, cols)
    return _pass_over_tiles(m, rows, cols, statistics=False)[0] if overview is None else overview


def statistics(m: MapData) -> RowStatistics:
    """Entropy and distance of every row, and the attention that every key receives."""
    _, _, T, S = m.matrix
    if m.device.type == "cpu" and T * S >= LARGE:
        sides = head_pass.QUERIES, head_pass.KEYS
        cells = (-(-n // side) for n, side in zip((T, S), sides, strict=True))
        return _pass_over_tiles(m, *cells, cells=False)[1]
    if m.device.type == "cuda" and m.dtype == torch.float32:
        from regard.attention.backends.triton import statistics

        mask, first = m.mask.simplified(m.matrix), m.first_position
        if statistics.unsupported_reason(m.q, m.k, mask) is None:
            return RowStatistics(*statistics.statistics(m.q, m.k, m.lse, mask, m.scale, m.softcap, first))
    return sweep.statistics(m)


def summary(m: MapData, rows: int, cols: int) -> MapSummary:
    """Overviews and statistics of every head: on a CPU from one pass."""
    _check_cells(m, rows, cols)
    if m.device.type == "cpu":
        overview, row_statistics = _pass_over_tiles(m, rows, cols)
        return MapSummary(*overview, *row_statistics)
    return MapSummary(*pool(m, rows, cols), *statistics(m))


def check_region(region: Region, matrix: tuple[int, int, int, int]) -> tuple[slice, slice]:
    """A region of a map of size (B, H, T, S) as slices of queries and keys with both ends given."""
    if not isinstance(region, tuple) or len(region) != 2 or not all(isinstance(s, slice) for s in region):
        raise ValueError(f"region: expected (slice of rows, slice of keys), got {region!r}")
    slices = []
    for name, span, length in zip(("rows", "keys"), region, matrix[2:], strict=True):
        start, stop, step = span.indices(length)
        if step != 1 or start >= stop:
            raise ValueError(f"region: expected some of {length} {name}, without a step, got {span}")
        slices.append(slice(start, stop))
    return slices[0], slices[1]


def _check_cells(m: MapData, rows: int, cols: int) -> None:
    """Raise ValueError unless every cell of an overview would have a row and a key."""
    _, _, T, S = m.matrix
    for name, n, most in (("rows", rows, T), ("cols", cols, S)):
        least = min(1, most)  # a map without rows or without keys has no cells
        check_whole_number(name, n, least, most)


def _pool_on_gpu(m: MapData, rows: int, cols: int) -> Overview | None:
    """The overview from the Triton kernel, or None if the kernel does not support this map."""
    if m.device.type != "cuda" or m.dtype != torch.float32:
        return None
    from regard.attention.backends.triton import pool

    mask = m.mask.simplified(m.matrix)
    if pool.unsupported_reason(m.q, m.k, mask, rows, cols) is not None:
        return None
    return Overview(*pool.pool(m.q, m.k, m.lse, mask, m.scale, m.softcap, rows, cols))


def _pass_over_tiles(
    m: MapData, rows: int, cols: int, *, cells: bool = True, statistics: bool = True
) -> tuple[Overview, RowStatistics]:
    """Overview and statistics from one pass; those that are switched off stay 0."""
    B, H, T, S = m.matrix
    if 0 in m.matrix:
        return Overview(*m.lse.new_zeros(2, B, H, rows, cols)), sweep.statistics(m)
    q_bins = make_bins(T, rows, head_pass.QUERIES)
    k_bins = make_bins(S, cols, head_pass.KEYS)
    mask_tiles = MaskTiles(m, q_bins, k_bins)
    shares = -(-_threads(m.device) // max(B * H, 1))  # fewer heads than cores: a head's tiles are shared out
    overview = Overview(*(m.lse.new_zeros(B, H, rows, cols) for _ in range(2)))
    stats = RowStatistics(*(m.lse.new_zeros(B, H, n) for n in (T, T, S)))
    total = m.lse.new_zeros(B, H, T)
    runs_by_bin = (cols, k_bins.per_bin, rows, q_bins.per_bin)

    def work(unit: tuple[int, int, int]) -> tuple[PooledCells | None, RunStatistics | None]:
        b, h, share = unit
        head = HeadPass(m, b, h, q_bins, k_bins, mask_tiles)
        pooled = head.empty_cells() if cells else None
        of_runs = head.empty_statistics() if statistics else None
        head.sweep(head.tiles()[share::shares], pooled, of_runs)
        if pooled is not None:  # join the runs of each bin
            sums, tops = (x.view(runs_by_bin) for x in pooled)
            pooled = PooledCells(sums.sum((1, 3)).mT, tops.amax((1, 3)).mT)
        return pooled, of_runs

    # Add up the shares of every head in a fixed order, so that the result does not depend on timing.
    units = list(product(range(B), range(H), range(shares)))
    for (b, h, _), (pooled, of_runs) in zip(units, _run_all(work, units, m.device), strict=True):
        if pooled is not None:
            overview.mass[b, h] += pooled.sums
            overview.max[b, h].copy_(torch.maximum(overview.max[b, h], pooled.tops))
        if of_runs is not None:
            stats.entropy[b, h] += q_bins.unpad(of_runs.entropy)
            stats.distance[b, h] += q_bins.unpad(of_runs.distance)
            stats.received[b, h] += k_bins.unpad(of_runs.received)
            total[b, h] += q_bins.unpad(of_runs.total)
    overview.mass.div_(torch.tensor(q_bins.edges).diff().to(overview.mass).view(-1, 1))
    return overview, sweep.normalise_statistics(m, stats, total) if statistics else stats


Unit = TypeVar("Unit")
Result = TypeVar("Result")


def _threads(device: torch.device) -> int:
    """How many units of work run at once: on a CPU one a core, better than cores that share a tile."""
    return torch.get_num_threads() if device.type == "cpu" else 1


def _run_all(work: Callable[[Unit], Result], units: list[Unit], device: torch.device) -> Iterator[Result]:
    """The results of the work for every unit, in order, from a thread a core."""
    threads, work = _threads(device), torch.no_grad()(work)
    if threads == 1:
        yield from map(work, units)
        return
    try:
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as workers:
            yield from workers.map(work, units)
    finally:
        torch.set_num_threads(threads)
