"""Overviews of a whole map at any resolution, exactly: weights pooled into cells, mass and maximum.

This file chooses between the Triton kernels and the pass over tiles, which gives row statistics in the same
pass, and shares that pass out among the cores. The pass over one head is in `head_pass.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import product
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from regard.attention.backends.triton import pool as triton_pool
from regard.attention.backends.triton import row_reductions
from regard.attention.backends.triton.column_sums import column_sums
from regard.maps import kernels
from regard.maps.data import MapData
from regard.maps.spans import equal_bounds
from regard.maps.tile_passes import head_pass, sweep
from regard.maps.tile_passes.bins import find_runs, make_bins, whole_bins
from regard.maps.tile_passes.head_pass import HeadPass, PlaceStatistics, ScoreTile, Tiling
from regard.maps.tile_passes.sweep import RowStatistics

Region = tuple[slice, slice]
"""Some rows and some keys of a map: `(slice(0, 128), slice(None))`."""


class Overview(NamedTuple):
    """The mean row mass and the largest weight of every cell."""

    mass: Tensor  # (B, H, rows, cols)
    max: Tensor  # (B, H, rows, cols)

    def pick(self, reduce: str) -> Tensor | Overview:
        """The one that `reduce` names, or both."""
        return self if reduce == "both" else self.mass if reduce == "mass" else self.max


class MapSummary(NamedTuple):
    """Overviews and statistics of every head."""

    mass: Tensor  # (B, H, rows, cols)
    max: Tensor  # (B, H, rows, cols)
    entropy: Tensor  # (B, H, T)
    distance: Tensor  # (B, H, T)
    received: Tensor  # (B, H, S)
    max_score: Tensor  # (B, H, T)


def pool(m: MapData, rows: Tensor, cols: Tensor, gain: Tensor | None = None) -> Overview:
    """Both overviews of every head, (B, H, rows, cols), for spans between bounds (2, rows) and (2, cols).

    `gain` (B, H, S), if given, multiplies the weights of every key; the maximum of a cell is then its entry
    of largest magnitude, with its sign.
    """
    pooled = kernels.run(triton_pool.pool, m, rows, cols, gain)
    if pooled is not None:
        return Overview(*pooled)
    return _pass_over_tiles(m, rows, cols, gain=gain, statistics=False)[0]


def statistics(m: MapData) -> RowStatistics:
    """Entropy, distance and largest score of every row, and the attention that every key receives."""
    found = kernels.run(row_reductions.statistics, m, m.first_position)
    if found is not None:
        return RowStatistics(*found)
    # One span each way: the cells are switched off, and the bins still have to hold every position.
    bounds = (equal_bounds(n, min(n, 1)) for n in m.matrix[2:])
    return _pass_over_tiles(m, *bounds, cells=False)[1]


def row_statistics(m: MapData) -> tuple[Tensor, Tensor]:
    """Entropy and distance of every row; on a GPU in less time than with what keys receive."""
    return kernels.run(row_reductions.row_statistics, m, m.first_position) or statistics(m)[:2]


def summary(m: MapData, rows: Tensor, cols: Tensor) -> MapSummary:
    """Overviews and statistics of every head: from one pass, on a GPU where the spans fill whole blocks.

    The spans hold every row and key.
    """
    if m.device.type == "cpu":
        overview, row_statistics = _pass_over_tiles(m, rows, cols)
        return MapSummary(*overview, *row_statistics)
    kept = None if m.kept is None else m.kept.pool(rows, cols, *m.matrix[2:])
    both = None if kept is not None else kernels.run(triton_pool.summary, m, m.first_position, rows, cols)
    if both is not None:
        return MapSummary(*both)
    return MapSummary(*(pool(m, rows, cols) if kept is None else kept), *statistics(m))


def received(m: MapData, row_weights: Tensor, rows: Tensor) -> Tensor:
    """The attention that every key receives, (B, H, S), each row times its entry of `row_weights` (B, H, T).

    `rows` are those whose weight is not 0, in increasing order.
    """
    B, H, _, S = m.matrix
    total = m.lse.new_zeros(B, H, S)
    if 0 in m.matrix or not len(rows):
        return total
    # A few rows far apart are gathered; many cost less where they are.
    span = slice(int(rows[0]), int(rows[-1]) + 1)
    few = None if 2 * len(rows) > span.stop - span.start else rows - span.start
    sums = kernels.run(column_sums, m.select_rows(span), row_weights[:, :, span], few)
    if sums is not None:
        return sums
    q_bins = make_bins(find_runs(rows.cpu()), head_pass.QUERIES, m.device)
    k_bins = whole_bins(S, head_pass.KEYS, m.device)

    tiling = Tiling(m, q_bins, k_bins)

    def receive(head: HeadPass, tiles: list[ScoreTile]) -> Tensor:
        return k_bins.by_position(head.receive(tiles, row_weights[head.at]), S)

    for at, part in _fold_tiles(m, tiling, receive):
        total[at] += part
    return total


def received_from_all(m: MapData) -> Tensor:
    """The attention that every key receives from all rows, (B, H, S)."""
    T, S = m.matrix[2:]
    if 0 in m.matrix:
        return m.lse.new_zeros(*m.matrix[:2], S)
    # expand: one number in memory for all rows.
    ones = m.lse.new_ones(()).expand(m.matrix[:3])
    sums = kernels.run(column_sums, m, ones)
    return received(m, ones, torch.arange(T, device=m.device)) if sums is None else sums


def topk(m: MapData, k: int) -> tuple[Tensor, Tensor]:
    """The k largest weights of every row and their keys, (B, H, T, k) each; key −1 where the weight is 0."""
    largest = kernels.run(row_reductions.topk, m, k) if k <= row_reductions.MOST else None
    if largest is not None:
        return largest
    best = m.lse.new_full((*m.matrix[:3], k), -torch.inf)
    indices = torch.full(best.shape, -1, device=m.device)
    if 0 not in m.matrix:
        largest_of = partial(HeadPass.largest, k=k)
        for at, (values, keys) in _fold_tiles(m, _whole_tiling(m, head_pass.LARGE_TILE), largest_of):
            # The tiles of one head may come from several threads.
            values, order = torch.cat([best[at], values], -1).topk(k, dim=-1)
            best[at], indices[at] = values, torch.cat([indices[at], keys], -1).gather(-1, order)
    weights = best.exp_()
    return weights, indices.masked_fill_(weights == 0, -1)


def mass(m: MapData) -> Tensor:
    """The sum of every row, (B, H, T): below 1 under a mask that is narrower than that of lse."""
    sums = kernels.run(row_reductions.row_sums, m)
    if sums is not None:
        return sums
    total = m.lse.new_zeros(m.matrix[:3])
    for at, part in _fold_tiles(m, _whole_tiling(m), HeadPass.masses) if 0 not in m.matrix else ():
        total[at] += part
    return total


def fill_dense(m: MapData, dense: Tensor) -> None:
    """Write the weight of every visible key into a tensor of zeros, (B, H, T, S)."""

    def fill(head: HeadPass, tiles: list[ScoreTile]) -> None:
        for tile, _, weights, _ in head.weigh(tiles, keep_logs=False):
            dense[*head.at, tile.q.places, tile.k.places] = weights

    for _ in _fold_tiles(m, _whole_tiling(m), fill) if 0 not in m.matrix else ():
        pass


def _whole_tiling(m: MapData, size: int = head_pass.TILE) -> Tiling:
    """The tiles of all rows and keys, a place for each, of at most `size` weights."""
    T, S = m.matrix[2:]
    q_bins = whole_bins(T, head_pass.QUERIES, m.device)
    return Tiling(m, q_bins, whole_bins(S, head_pass.KEYS, m.device), size)


def check_region(region: Region | None, matrix: tuple[int, ...]) -> tuple[slice, slice]:
    """A region of a map of size (…, T, S) as slices of queries and keys with both ends given."""
    T, S = matrix[-2:]
    if region is None:
        return slice(0, T), slice(0, S)
    if not isinstance(region, tuple) or len(region) != 2 or not all(isinstance(s, slice) for s in region):
        raise ValueError(f"region: expected (slice of rows, slice of keys), got {region!r}")
    slices = []
    for name, span, length in zip(("rows", "keys"), region, (T, S), strict=True):
        start, stop, step = span.indices(length)
        if step != 1 or start >= stop:
            raise ValueError(f"region: expected some of {length} {name}, without a step, got {span}")
        slices.append(slice(start, stop))
    return slices[0], slices[1]


def check_reduce(reduce: str) -> None:
    """Raise ValueError unless `reduce` is one that `pool` has."""
    if reduce not in ("mass", "max", "both"):
        raise ValueError(f"reduce: expected 'mass', 'max' or 'both', got {reduce!r}")


def _pass_over_tiles(
    m: MapData,
    rows: Tensor,
    cols: Tensor,
    *,
    gain: Tensor | None = None,
    cells: bool = True,
    statistics: bool = True,
) -> tuple[Overview, RowStatistics]:
    """Overview and statistics from one pass; those that are switched off stay 0."""
    B, H, T, S = m.matrix
    overview = Overview(*m.lse.new_zeros(2, B, H, rows.shape[1], cols.shape[1]))
    larger = torch.maximum if gain is None else larger_magnitude
    entropy, distance, total = (m.lse.new_zeros(B, H, T) for _ in range(3))
    largest = torch.full_like(m.lse, -torch.inf)
    stats = RowStatistics(entropy, distance, m.lse.new_zeros(B, H, S), largest)
    if 0 in m.matrix:
        return overview, stats
    q_bins = make_bins(rows, head_pass.QUERIES, m.device, pad=cells)
    k_bins = make_bins(cols, head_pass.KEYS, m.device, pad=cells)

    def sweep_head(
        head: HeadPass, tiles: list[ScoreTile]
    ) -> tuple[Tensor | None, list[Tensor], PlaceStatistics | None]:
        of_places = head.empty_statistics() if statistics else None
        if not cells:
            head.sweep(tiles, None, of_places)
            return None, [], of_places
        # The first share of a head fills the overview itself: more memory is a fifth of a short map's time.
        fills = head.share == 0 and head.dtype == m.lse.dtype
        pooled = head.cells_in(overview.mass[head.at], overview.max[head.at]) if fills else head.empty_cells()
        head.sweep(tiles, pooled, of_places)
        lows = [] if pooled.lows is None else [pooled.lows]
        return (None, lows, of_places) if fills else (pooled.sums, [pooled.tops, *lows], of_places)

    tiling = Tiling(m, q_bins, k_bins)
    for at, (sums, extremes, of_places) in _fold_tiles(m, tiling, sweep_head, gain):
        if sums is not None:
            overview.mass[at] += sums
        for extreme in extremes:
            overview.max[at] = larger(overview.max[at], extreme)
        if of_places is not None:
            stats.entropy[at] += q_bins.by_position(of_places.entropy, T)
            distance = tiling.distances(of_places.total_and_back)
            stats.distance[at] += q_bins.by_position(distance, T)
            stats.received[at] += k_bins.by_position(of_places.received.squeeze(1), S)
            total[at] += q_bins.by_position(of_places.total_and_back[:, 0], T)
            of_rows = q_bins.by_position(of_places.largest, T)
            largest[at] = torch.maximum(largest[at], of_rows)
    overview.mass.div_(q_bins.sizes[:, None])
    return overview, sweep.finish_statistics(m, stats, total) if statistics else stats


def larger_magnitude(x: Tensor, y: Tensor) -> Tensor:
    """Of each two entries of x and y the one of larger magnitude, x in a draw."""
    return y.where(y.abs() > x.abs(), x)


Result = TypeVar("Result")


def _fold_tiles(
    m: MapData,
    tiling: Tiling,
    reduce: Callable[[HeadPass, list[ScoreTile]], Result],
    gain: Tensor | None = None,
) -> Iterator[tuple[tuple[int, slice], Result]]:
    """What the tiles of a few heads are reduced to, with their sequence and numbers, from a thread a core.

    Where there are fewer heads than cores, the tiles of a head are shared out, and it comes several times.
    The order is fixed, so that sums do not depend on timing.
    """
    B, H = m.matrix[:2]
    # On a CPU a unit of work a core, which is better than cores that share a tile.
    # torch's own number of threads, which a user may have set lower than the number of cores.
    threads = torch.get_num_threads() if m.device.type == "cpu" else 1
    # Several heads at once where a block of queries of one head fills no tile.
    numbers = head_pass.QUERIES * max(head_pass.KEYS, len(tiling.k_bins.places))
    at_once = min(max(1, tiling.size // numbers), -(-B * H // threads), H)
    # As many groups a sequence as keep all threads busy to the end.
    groups = -(-H // at_once)
    at_once = -(-H // (-(-groups // threads) * threads)) if at_once > 1 else 1
    shares = -(-threads // max(B * -(-H // at_once), 1))

    @torch.no_grad()
    def work(unit: tuple[int, int, int]) -> tuple[tuple[int, slice], Result]:
        b, first, share = unit
        at = b, slice(first, min(first + at_once, H))
        head = HeadPass(m, *at, share, tiling, None if gain is None else gain[at])
        # Every so many, as later queries of a causal mask see more keys.
        return at, reduce(head, head.tiles()[share::shares])

    units = product(range(B), range(0, H, at_once), range(shares))
    if threads == 1:
        yield from map(work, units)
        return
    try:
        # Here, too: after an operation on several cores, PyTorch's threads wait for the next in a busy loop.
        torch.set_num_threads(1)
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as workers:
            yield from workers.map(work, units)
    finally:
        # Also after an exception, or if the caller stops reading the generator.
        torch.set_num_threads(threads)
