"""The whole map at any resolution, exactly: weights pooled into cells, mass and maximum in one pass.

On a CPU the same pass can give the statistics of its rows too. This file knows which path serves and shares
the work out among the cores; what is done with one head is in `one_head`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import torch
from torch import Tensor

from regard.attention.arguments import check_whole_number
from regard.maps import head_pass, sweep
from regard.maps.bins import bins
from regard.maps.head_pass import HeadPass, MaskTiles, PooledCells, RowStats
from regard.maps.sweep import RowStatistics

if TYPE_CHECKING:
    from regard.maps.map import AttentionMap

LARGE = 1 << 20  # weights a head: below, heads are taken many at a time, which costs less than a pass each

Region = tuple[slice, slice]
"""Some rows and some keys of a map: `(slice(0, 128), slice(None))`."""


class Overview(NamedTuple):
    mass: Tensor  # (B, H, rows, cols)
    max: Tensor  # (B, H, rows, cols)


class MapSummary(NamedTuple):
    """Overviews and statistics of every head."""

    mass: Tensor  # (B, H, rows, cols)
    max: Tensor  # (B, H, rows, cols)
    entropy: Tensor  # (B, H, T)
    distance: Tensor  # (B, H, T)
    received: Tensor  # (B, H, S)


def pool(m: AttentionMap, rows: int, cols: int) -> Overview:
    """Both overviews of every head, (B, H, rows, cols)."""
    _check_cells(m, rows, cols)
    found = _on_gpu(m, rows, cols)
    return _by_tiles(m, rows, cols, lines=False)[0] if found is None else found


def statistics(m: AttentionMap) -> RowStatistics:
    """Entropy and distance of every row, and what every key receives."""
    _, _, T, S = m.matrix
    if m.device.type == "cpu" and T * S >= LARGE:
        most = head_pass.QUERIES, head_pass.KEYS
        return _by_tiles(m, *(-(-n // side) for n, side in zip((T, S), most, strict=True)), cells=False)[1]
    if m.device.type == "cuda" and m.dtype == torch.float32:
        from regard.attention.backends.triton import statistics

        mask, first = m.mask.simplified(m.matrix), sweep.first_position(m)
        if statistics.unsupported_reason(m.q, m.k, mask) is None:
            return RowStatistics(*statistics.statistics(m.q, m.k, m.lse, mask, m.scale, m.softcap, first))
    return sweep.statistics(m)


def summary(m: AttentionMap, rows: int, cols: int) -> MapSummary:
    """Overviews and statistics of every head: on a CPU from one pass."""
    _check_cells(m, rows, cols)
    if m.device.type == "cpu":
        both, of_rows = _by_tiles(m, rows, cols)
        return MapSummary(*both, *of_rows)
    return MapSummary(*pool(m, rows, cols), *statistics(m))


def spans(region: Region, matrix: tuple[int, int, int, int]) -> tuple[slice, slice]:
    """A region as plain slices of the queries and of the keys."""
    if not isinstance(region, tuple) or len(region) != 2 or not all(isinstance(s, slice) for s in region):
        raise ValueError(f"region: expected (slice of rows, slice of keys), got {region!r}")
    found = []
    for name, span, length in zip(("rows", "keys"), region, matrix[2:], strict=True):
        start, stop, step = span.indices(length)
        if step != 1 or start >= stop:
            raise ValueError(f"region: expected some of {length} {name}, without a step, got {span}")
        found.append(slice(start, stop))
    return found[0], found[1]


def _check_cells(m: AttentionMap, rows: int, cols: int) -> None:
    _, _, T, S = m.matrix
    for name, n, most in (("rows", rows, T), ("cols", cols, S)):
        least = min(1, most)  # a map without rows or without keys has no cells
        check_whole_number(name, n, least, most)


def _on_gpu(m: AttentionMap, rows: int, cols: int) -> Overview | None:
    """The overview from the Triton kernel, if there is one for this map."""
    if m.device.type != "cuda" or m.dtype != torch.float32:
        return None
    from regard.attention.backends.triton import pool

    mask = m.mask.simplified(m.matrix)
    if pool.unsupported_reason(m.q, m.k, mask, rows, cols) is not None:
        return None
    return Overview(*pool.pool(m.q, m.k, m.lse, mask, m.scale, m.softcap, rows, cols))


def _by_tiles(
    m: AttentionMap, rows: int, cols: int, *, cells: bool = True, lines: bool = True
) -> tuple[Overview, RowStatistics]:
    """Both from one pass; what is not asked for stays empty or 0."""
    B, H, T, S = m.matrix
    if 0 in m.matrix:
        return Overview(*m.lse.new_zeros(2, B, H, rows, cols)), sweep.statistics(m)
    over_q, over_k = bins(T, rows, head_pass.QUERIES), bins(S, cols, head_pass.KEYS)
    seen = MaskTiles(m, over_q, over_k)
    shares = -(-_threads(m.device) // max(B * H, 1))  # fewer heads than cores share out their tiles
    both = Overview(*(m.lse.new_zeros(B, H, rows, cols) for _ in range(2)))
    stats = RowStatistics(*(m.lse.new_zeros(B, H, n) for n in (T, T, S)))
    total = m.lse.new_zeros(B, H, T)
    apart = (cols, over_k.per_bin, rows, over_q.per_bin)

    def work(unit: tuple[int, int, int]) -> tuple[PooledCells | None, RowStats | None]:
        b, h, share = unit
        head = HeadPass(m, b, h, over_q, over_k, seen)
        found, of_rows = head.cells() if cells else None, head.lines() if lines else None
        head.sweep(head.tiles()[share::shares], found, of_rows)
        if found is not None:
            sums, tops = (x.view(apart) for x in found)
            found = PooledCells(sums.sum((1, 3)).mT, tops.amax((1, 3)).mT)
        return found, of_rows

    units = list(product(range(B), range(H), range(shares)))
    for (b, h, _), (found, of_rows) in zip(units, _each(work, units, m.device), strict=True):
        if found is not None:
            both.mass[b, h] += found.sums
            both.max[b, h].copy_(torch.maximum(both.max[b, h], found.tops))
        if of_rows is not None:
            stats.entropy[b, h] += over_q.real(of_rows.entropy)
            stats.distance[b, h] += over_q.real(of_rows.distance)
            stats.received[b, h] += over_k.real(of_rows.received)
            total[b, h] += over_q.real(of_rows.total)
    both.mass.div_(torch.tensor(over_q.edges).diff().to(both.mass).view(-1, 1))
    return both, sweep.normalised(m, stats, total) if lines else stats


Unit = TypeVar("Unit")
Found = TypeVar("Found")


def _threads(device: torch.device) -> int:
    """How many units of work go on at once: on a CPU one a core, better than cores that share a tile."""
    return torch.get_num_threads() if device.type == "cpu" else 1


def _each(work: Callable[[Unit], Found], units: list[Unit], device: torch.device) -> Iterator[Found]:
    """What the work gives for every unit, in their order."""
    before, work = _threads(device), torch.no_grad()(work)
    if before == 1:
        yield from map(work, units)
        return
    try:
        with ThreadPoolExecutor(before, initializer=torch.set_num_threads, initargs=(1,)) as workers:
            yield from workers.map(work, units)
    finally:
        torch.set_num_threads(before)
