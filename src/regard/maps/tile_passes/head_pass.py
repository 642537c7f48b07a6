"""One pass over the weights of a few heads, tile by tile, for their overviews, row statistics, or both.

A tile is a block of queries and all keys that they see, up to a limit: one product of [scale·q, −lse] and
[k, 1], and one exp. Its rows are summed or compared first, which leaves little to reduce along its last axis.
This file knows a few heads; `overview.py` shares all of them out among the cores.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from itertools import groupby
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.compiler import is_compiling

from regard.attention.backends.tiles import exponentials, find_visibility, least_log
from regard.attention.masks.base import Mask
from regard.attention.masks.grid import grid
from regard.maps.data import MapData
from regard.maps.tile_passes.bins import Bins, TileSide, block_table, join_sides
from regard.maps.tile_passes.sweep import LOG_ZERO, finite_lse

QUERIES, KEYS = 128, 128  # of a block, of which the mask tells whether anything in it is visible
TILE = 1 << 19  # weights of a tile of all heads, in blocks of neighbouring keys: 2 MiB in float32
LARGE_TILE = 1 << 20  # the same where a tile is reduced by many operations on few numbers each
GROUP = 8  # keys of which the largest is compared first, where the largest of a row are looked for
MAX_CACHED = 1 << 23  # weights whose visibility is cached: 32 MiB in float32


class ScoreTile(NamedTuple):
    """Sides of queries and keys, and those parts of the keys of which something may be hidden."""

    q: TileSide
    k: TileSide
    masked: list[TileSide]


class PooledCells(NamedTuple):
    """The sum, the maximum and, where entries are signed, the minimum of every cell."""

    sums: Tensor  # (heads, bins of queries, bins of keys)
    tops: Tensor  # (heads, bins of queries, bins of keys) 0 or above
    lows: Tensor | None  # (heads, bins of queries, bins of keys) 0 or below


class PlaceStatistics(NamedTuple):
    """Statistics of rows and columns, for every place of the bins."""

    entropy: Tensor  # (heads, places of queries)
    total_and_back: Tensor  # (heads, 2, places of queries) the sum of a row, and of the keys' distances
    received: Tensor  # (heads, 1, places of keys)
    largest: Tensor  # (heads, places of queries) the logarithm of the largest weight of a row


class HeadPass:
    """Some heads of one sequence of a map, their q and k laid out in runs.

    `b` is the number of the sequence; `tiling`, with the bins of queries and of keys, is shared by all
    passes. `gain` (heads, S), if given, multiplies the weights of each key.
    """

    def __init__(
        self, m: MapData, b: int, heads: slice, share: int, tiling: Tiling, gain: Tensor | None = None
    ) -> None:
        self.at, self.share, self.tiling = (b, heads), share, tiling
        self.q_bins, self.k_bins = q_bins, k_bins = tiling.q_bins, tiling.k_bins
        self.scale, self.softcap = m.scale, m.softcap
        self.mask = m.mask.select(slice(b, b + 1), heads)
        self.dtype = m.result_dtype
        q, lse = (q_bins.select(x[b, heads], 1) for x in (m.q, finite_lse(m.lse)))
        group = m.q.shape[1] // m.k.shape[1]
        if group == 1:
            k = m.k[b, heads]
        else:
            k = m.k[b, [h // group for h in range(heads.start, heads.stop)]]
        q, k = q.to(m.dtype), k_bins.select(k, 1).to(m.dtype)
        # [scale·q, −lse] (heads, places, D + 1); below a soft cap the products are scaled.
        (H, queries, D), keys = q.shape, k.shape[1]
        self.q = q.new_empty(H, queries, D + 1)
        torch.mul(q, m.scale if m.softcap is None else 1.0, out=self.q[..., :-1])
        torch.neg(lse, out=self.q[..., -1])
        # [k, 1], transposed, as the product needs them: (heads, D + 1, places).
        self.k = k.new_ones(H, D + 1, keys)
        self.k[:, :-1].copy_(k.mT)
        self.is_normal = self._is_bounded(k, lse)
        self.gain = None if gain is None else k_bins.select(gain, 1).to(self.dtype)  # (heads, places)

    def _is_bounded(self, k: Tensor, lse: Tensor) -> bool:
        """Whether all exponentials are normal numbers by the lengths of queries and keys: no tile is asked.

        `k` is (heads, places, D) and `lse` (heads, places).
        """
        # Spans may all be empty.
        if self.mask.biased or self.softcap is not None or 0 in (self.q.shape[1], k.shape[1]):
            return False
        longest = torch.linalg.vector_norm(k, dim=-1).amax(-1, keepdim=True)
        size = torch.linalg.vector_norm(self.q[..., :-1], dim=-1) * longest  # no score exceeds it
        return bool((size + lse.abs()).amax() <= -least_log(self.dtype))

    def tiles(self) -> list[ScoreTile]:
        """Every tile with a visible key."""
        return self.tiling.tiles(self.mask, len(self.q))

    def empty_cells(self) -> PooledCells:
        """Cells of zeros, to be filled by a pass."""
        shape = len(self.q), len(self.q_bins.sizes), len(self.k_bins.sizes)
        sums, tops = self.q.new_zeros(2, *shape, dtype=self.dtype)
        return self.cells_in(sums, tops)

    def cells_in(self, sums: Tensor, tops: Tensor) -> PooledCells:
        """Cells whose sums and maxima are in the memory that is given, and are added to by a pass."""
        return PooledCells(sums, tops, None if self.gain is None else torch.zeros_like(tops))

    def empty_statistics(self) -> PlaceStatistics:
        """Statistics of no weights, to be added to by a pass."""
        heads, queries = self.q.shape[:2]
        entropy, back, received = (
            self.q.new_zeros(shape, dtype=self.dtype)
            for shape in ((heads, queries), (heads, 2, queries), (heads, 1, self.k.shape[-1]))
        )
        return PlaceStatistics(entropy, back, received, torch.full_like(entropy, -torch.inf))

    def sweep(
        self, tiles: list[ScoreTile], cells: PooledCells | None, statistics: PlaceStatistics | None
    ) -> None:
        """Pass over some tiles; fill the cells and add to the statistics, whichever are not None."""
        for tile, logs, weights, largest in self.weigh(tiles, keep_logs=statistics is not None):
            sums = None if cells is None else self._pool(cells, tile, weights)
            if statistics is not None:
                self._add(statistics, tile, logs, weights, largest, weights if sums is None else sums)

    def receive(self, tiles: list[ScoreTile], row_weights: Tensor) -> Tensor:
        """The weights of tiles times `row_weights` (heads, T), summed over the queries: (heads, places)."""
        of_places = self.q_bins.select(row_weights, 1).to(self.dtype).unsqueeze(1)  # (heads, 1, places)
        received = self.k.new_zeros(len(self.k), 1, self.k.shape[-1], dtype=self.dtype)
        for tile, _, weights, _ in self.weigh(tiles, keep_logs=False):
            received[..., tile.k.places] += of_places[..., tile.q.places] @ weights
        return received.squeeze(1)

    def masses(self, tiles: list[ScoreTile]) -> Tensor:
        """The sum of every row of some tiles, (heads, places of queries)."""
        total = self.q.new_zeros(self.q.shape[:2], dtype=self.dtype)
        for tile, _, weights, _ in self.weigh(tiles, keep_logs=False):
            total[:, tile.q.places] += weights.sum(-1)
        return total

    def largest(self, tiles: list[ScoreTile], k: int) -> tuple[Tensor, Tensor]:
        """The k largest log weights of every query and their keys, (heads, T, k) each; −inf and −1 for none.

        The bins have to hold every position, one place each.
        """
        shape = *self.q.shape[:2], k
        best = self.q.new_full(shape, -torch.inf, dtype=self.dtype)
        indices = torch.full(shape, -1, device=self.q.device)
        last = None
        for tile in tiles:
            logs, visible = self._log_weights(tile)
            for at, shown in visible:
                logs[..., at].masked_fill_(shown == 0.0, -torch.inf)
            rows = tile.q.places
            values, index = _largest(logs, k)
            index += tile.k.first
            if tile.q is last:
                values = torch.cat([best[:, rows], values], -1)
                index = torch.cat([indices[:, rows], index], -1)
                values, order = values.topk(min(k, values.shape[-1]), dim=-1)
                index = index.gather(-1, order)
            best[:, rows, : values.shape[-1]], indices[:, rows, : values.shape[-1]] = values, index
            last = tile.q
        return best, indices

    def _pool(self, cells: PooledCells, tile: ScoreTile, weights: Tensor) -> Tensor:
        """Add the weights of a tile to its cells, and return their sums (heads, bins of queries, keys)."""
        entries = weights if self.gain is None else weights * self.gain[:, None, tile.k.places]
        q, k, join_q, join_k = tile.q, tile.k, self.q_bins.join, self.k_bins.join
        sums: Tensor = join_q(entries, q, "sum", -2)
        cells.sums[:, q.bins, k.bins].add_(join_k(sums, k, "sum", -1))
        tops = cells.tops[:, q.bins, k.bins]
        torch.maximum(tops, join_k(join_q(entries, q, "amax", -2), k, "amax", -1), out=tops)
        if cells.lows is not None:
            lows = cells.lows[:, q.bins, k.bins]
            torch.minimum(lows, join_k(join_q(entries, q, "amin", -2), k, "amin", -1), out=lows)
        return sums

    def weigh(
        self, tiles: list[ScoreTile], *, keep_logs: bool
    ) -> Iterator[tuple[ScoreTile, Tensor, Tensor, Tensor | None]]:
        """Each tile with its log weights and its weights (heads, queries, keys).

        The log weights are lost unless `keep_logs`; those of hidden entries are any finite numbers. The last
        are the largest log weights of every query, if the weights do not have all their digits.
        """
        for tile in tiles:
            (logs, visible), largest = self._log_weights(tile), None
            weights = self.tiling.memory_for(1, tuple(logs.shape), logs.dtype) if keep_logs else logs
            if self.is_normal or (visible and _is_normal(logs)):
                torch.exp(logs, out=weights)
                for at, shown in visible:
                    weights[..., at].mul_(shown)
            else:
                for at, shown in visible:
                    logs[..., at].masked_fill_(shown == 0.0, -torch.inf)
                if keep_logs:
                    largest = logs.amax(-1)
                    logs.clamp_(min=LOG_ZERO)
                exponentials(logs, out=weights)
            if tile.k.padding is not None:
                weights.index_fill_(-1, tile.k.padding, 0.0)
            if tile.q.padding is not None:  # copies of a bin's last position must not count twice
                weights.index_fill_(-2, tile.q.padding, 0.0)
            yield tile, logs, weights, largest

    def _log_weights(self, tile: ScoreTile) -> tuple[Tensor, list[tuple[slice, Tensor]]]:
        """score − lse of a tile, and which entries are visible, where some may be hidden.

        Each part of the visibility, 1 or 0 for hidden entries, comes with its place among the tile's keys.
        The difference is computed in float64 where scores are large; it is small itself where a weight is not
        0.
        """
        q, k = self.q[:, tile.q.places], self.k[..., tile.k.places]
        if self.softcap is None:
            shape = len(q), q.shape[1], k.shape[-1]
            products = torch.bmm(q, k, out=self.tiling.memory_for(0, shape, q.dtype))
        else:
            products = torch.bmm(q[..., :-1], k[:, :-1]).mul_(self.scale / self.softcap).tanh_()
            products.mul_(self.softcap).add_(q[..., -1:])
        visible = []
        for part in tile.masked:
            first = part.places.start - tile.k.places.start
            at = slice(first, first + part.size)
            bias, shown = self.tiling.show(self.mask, len(self.q), tile.q, part)
            if bias is not None:
                products[..., at].add_(bias)
            visible.append((at, shown))
        return products.to(self.dtype), visible

    def _add(
        self,
        statistics: PlaceStatistics,
        tile: ScoreTile,
        logs: Tensor,
        weights: Tensor,
        largest: Tensor | None,
        sums: Tensor,
    ) -> None:
        """Add a tile to the statistics; `sums` are its weights, or sums of them, along the queries."""
        rows = tile.q.places
        # The logarithm of a normal number has fewer digits wrong than the score behind it.
        largest = weights.amax(-1).log_() if largest is None else largest
        of_rows = statistics.largest[:, rows]
        torch.maximum(of_rows, largest, out=of_rows)
        # This takes a quarter of the time of `weights @ steps` with PyTorch 2.13 on x86-64.
        statistics.total_and_back[..., rows].baddbmm_(self.tiling.steps(tile, len(weights)), weights.mT)
        ones = self.tiling.ones[:, :, : sums.shape[1]].expand(len(sums), -1, -1)
        statistics.received[..., tile.k.places].baddbmm_(ones, sums)
        # logs is not read again: its own place takes the product.
        statistics.entropy[:, rows].sub_(logs.mul_(weights).sum(-1))


def _largest(logs: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest of every row (heads, rows, keys) and their places, or all where the keys are fewer."""
    keys = logs.shape[-1]
    if keys <= 2 * GROUP * k:
        return logs.topk(min(k, keys), dim=-1)
    # The k largest are in the k groups with the largest maxima, which are quick to find. A group has every
    # `count`-th key: to compare neighbours takes longer. Keys beyond the groups are looked at one by one.
    count = keys // GROUP
    inside = count * GROUP
    parts: Tensor = logs[..., :inside].unflatten(-1, (GROUP, count))  # type: ignore[no-untyped-call]
    groups = _largest(parts.amax(-2), k)[1]
    steps = torch.arange(0, inside, count, device=logs.device)
    rest = torch.arange(inside, keys, device=logs.device).expand(*logs.shape[:-1], -1)
    places = torch.cat([(groups.unsqueeze(-1) + steps).flatten(-2), rest], -1)
    values, order = logs.gather(-1, places).topk(k, dim=-1)
    return values, places.gather(-1, order)


def _is_normal(logs: Tensor) -> bool:
    """Whether the exponentials of a tile, of hidden entries too, are normal numbers."""
    least, most = logs.aminmax()
    return bool(least >= least_log(logs.dtype)) and bool(most <= -least_log(logs.dtype))


class Tiling:
    """The tiles of a map and the mask's part in them, cached from head to head where heads have one mask."""

    def __init__(self, m: MapData, q_bins: Bins, k_bins: Bins, size: int = TILE) -> None:
        self.size = size  # weights of a tile
        self.q_bins, self.k_bins, self.device, self.dtype = q_bins, k_bins, m.device, m.result_dtype
        self.shape = m.matrix[2:]
        self._is_band = m.mask.band(*self.shape) is not None
        self.q_positions = q_bins.places + m.first_position  # (places,) among the keys
        self.listed: tuple[Mask, list[ScoreTile]] | None = None
        self.memory: dict[tuple[Any, ...], Tensor] = {}
        self.views: dict[tuple[Any, ...], Tensor] = {}  # of it
        self.cached = 0  # weights
        self.cache: dict[tuple[int, ...], tuple[Mask, Tensor | None, Tensor]] = {}
        # (2, places) 1, and the steps back from position 0, which float32 holds exactly up to 2²⁴
        ones_and_steps = torch.stack([torch.ones_like(k_bins.places), -k_bins.places])
        self.ones_and_steps = ones_and_steps.to(self.dtype)
        self.first_queries = {
            side.places.start: self.ones_and_steps.new_tensor([[0.0], [self._first_query(side)]])
            for side in q_bins.sides
        }
        self.ones = self.ones_and_steps.new_ones(1, 1, max((side.size for side in q_bins.sides), default=0))

    def memory_for(self, number: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Memory of this thread for a tile. The pages of fresh memory take as long as its exponentials."""
        if is_compiling():  # torch.compile of PyTorch 2.13 fails at memory that is kept by thread
            return torch.empty(shape, dtype=dtype, device=self.device)
        key = threading.get_ident(), number, dtype
        view = self.views.get((*key, shape))
        if view is None:
            size = math.prod(shape)
            if key not in self.memory or len(self.memory[key]) < size:
                self.memory[key] = torch.empty(max(size, self.size), dtype=dtype, device=self.device)
            view = self.views[*key, shape] = self.memory[key][:size].view(shape)
        return view

    def steps(self, tile: ScoreTile, heads: int) -> Tensor:
        """1 and the steps from a tile's first query back to each of its keys, (heads, 2, keys).

        Sums over keys are products with these. From the first query, as long distances would lose digits.
        """
        steps = self.ones_and_steps[:, tile.k.places] + self.first_queries[tile.q.places.start]
        return steps.expand(heads, -1, -1)

    def distances(self, total_and_back: Tensor) -> Tensor:
        """The distances of places (heads, places) from sums of `steps` (heads, 2, places)."""
        sizes = torch.tensor([side.size for side in self.q_bins.sides], device=self.device)
        first = torch.tensor([self._first_query(side) for side in self.q_bins.sides], device=self.device)
        steps = (self.q_positions - first.repeat_interleave(sizes)).to(total_and_back)
        total, back = total_and_back.unbind(1)
        return torch.addcmul(back, total, steps)

    def _first_query(self, side: TileSide) -> int:
        """The position of a side's first query among the keys."""
        return side.first + self.shape[1] - self.shape[0]

    def tiles(self, mask: Mask, heads: int) -> list[ScoreTile]:
        """Every tile of some heads with a visible key: blocks of neighbouring keys as one tile."""
        if self.listed is None or self.listed[0] is not mask:
            some, every = find_visibility(mask, block_table(self.q_bins, self.k_bins, *self.shape))
            rows = zip(self.q_bins.sides, some.tolist(), every.tolist(), strict=True)
            self.listed = (
                mask,
                [tile for row in rows for tile in self._row_tiles(mask, self.size // heads, *row)],
            )
        return self.listed[1]

    def _row_tiles(
        self, mask: Mask, size: int, q: TileSide, some: list[bool], every: list[bool]
    ) -> Iterator[ScoreTile]:
        """The tiles of one side of queries, of at most `size` weights unless a block has more."""
        run: list[tuple[TileSide, bool]] = []
        most = size // q.size
        for side, visible, whole in zip(self.k_bins.sides, some, every, strict=True):
            if run and not (visible and side.places.stop - run[0][0].places.start <= most):
                yield _join_blocks(q, run, mask.biased)
                run = []
            if visible:
                run.append((side, whole))
        if run:
            yield _join_blocks(q, run, mask.biased)

    def show(self, mask: Mask, heads: int, q: TileSide, k: TileSide) -> tuple[Tensor | None, Tensor]:
        """The bias of queries and keys, if any, and their visibility: 1, and 0 where an entry is hidden.

        Both are (heads or 1, queries, keys).
        """
        place: tuple[int, ...] = heads, q.places.start, k.places.start, k.places.stop
        if self._is_band and q.is_in_line and k.is_in_line and not mask.biased:
            # What is as far from the diagonal looks the same.
            place = heads, q.first - k.first, q.size, k.size
        if place in self.cache and self.cache[place][0] is mask:
            return self.cache[place][1:]
        queries, keys = self.q_bins.places[q.places], self.k_bins.places[k.places]
        at = grid(queries, keys, (1, heads, *self.shape), self.device)
        bias = mask.score_bias(at)
        bias = None if bias is None else bias.detach()[0]
        allowed = mask.allowed(at)[0].expand(-1, len(queries), len(keys))
        visible = allowed.to(self.dtype)
        if self.cached + visible.numel() <= MAX_CACHED:
            self.cache[place] = mask, bias, visible
            self.cached += visible.numel()
        return bias, visible


def _join_blocks(q: TileSide, run: list[tuple[TileSide, bool]], biased: bool) -> ScoreTile:
    """The tile of blocks of neighbouring keys, which are `whole` if every query sees all of them."""
    k = join_sides([side for side, _ in run])
    if biased:
        return ScoreTile(q, k, [k])
    parts = groupby(run, lambda block: block[1])
    return ScoreTile(q, k, [join_sides([side for side, _ in part]) for whole, part in parts if not whole])
