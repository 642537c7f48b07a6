"""One pass over the weights of one head, tile by tile, for its overview, its row statistics, or both.

Tiles hold keys by queries, so that bins are reduced along an axis that is never the last and whole rows are
added at once. A tile is one product of [scale·q, −lse] and [k, 1], and one exp. This file knows one head;
`overview.py` shares heads out among the cores.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import islice
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from regard.attention.backends.tiles import exponentials, find_visibility, least_log
from regard.attention.masks.base import Mask
from regard.attention.masks.grid import grid
from regard.maps.data import MapData
from regard.maps.tile_passes.bins import Bins, TileSide, block_table
from regard.maps.tile_passes.sweep import LOG_ZERO, finite_lse

QUERIES, KEYS = 512, 512  # of one tile: 1 MiB in float32
MAX_RUN = 8  # tiles that are reduced together


class ScoreTile(NamedTuple):
    """Sides of queries and keys; `whole` if every one of the queries may see every one of the keys."""

    q: TileSide
    k: TileSide
    whole: bool


class PooledCells(NamedTuple):
    """The sum, the maximum and, where entries are signed, the minimum of every cell of one head."""

    sums: Tensor  # (bins of keys, bins of queries)
    tops: Tensor  # (bins of keys, bins of queries) 0 or above
    lows: Tensor | None  # (bins of keys, bins of queries) 0 or below


class PlaceStatistics(NamedTuple):
    """Statistics of one head's rows and columns, for every place of its bins."""

    entropy: Tensor  # (places of queries,)
    distance: Tensor  # (places of queries,)
    total: Tensor  # (places of queries,) the sum of a row
    received: Tensor  # (places of keys,)
    largest: Tensor  # (places of queries,) the logarithm of the largest weight of a row


class HeadPass:
    """One head of a map, its q and k laid out in runs.

    `b` and `h` are the numbers of the sequence and of the head, `q_bins` and `k_bins` the bins of queries and
    keys; `mask_tiles` is shared by all heads. `gain` (S,), if given, multiplies the weights of each key.
    """

    def __init__(
        self,
        m: MapData,
        b: int,
        h: int,
        q_bins: Bins,
        k_bins: Bins,
        mask_tiles: MaskTiles,
        gain: Tensor | None = None,
    ) -> None:
        self.b, self.h = b, h
        self.q_bins, self.k_bins, self.mask_tiles = q_bins, k_bins, mask_tiles
        self.scale, self.softcap = m.scale, m.softcap
        self.mask = m.mask.select(slice(b, b + 1), slice(h, h + 1))
        self.q_positions = q_bins.places + m.first_position  # (places,) among the keys
        self.matrix = m.matrix
        self.dtype = m.result_dtype
        q, k = q_bins.select(m.q[b, h]), k_bins.select(m.k[b, h // (m.q.shape[1] // m.k.shape[1])])
        lse = q_bins.select(finite_lse(m.lse[b, h]))
        # [scale·q, −lse] and [k, 1], (places, D + 1) each; below a soft cap the products are scaled.
        self.q = _with_column(q.to(m.dtype), m.scale if m.softcap is None else 1.0, -lse)
        self.k = _with_column(k.to(m.dtype), 1.0, 1.0)
        self.is_normal = self._are_normal()
        self.key_groups: dict[int, KeyGroups] = {}  # by the first place of a side
        self.gain = None if gain is None else k_bins.select(gain).to(self.dtype)  # (places,)

    def tiles(self) -> list[ScoreTile]:
        """Every tile with a visible key."""
        blocks = block_table(self.q_bins, self.k_bins, *self.matrix[2:])
        some, every = (x.tolist() for x in find_visibility(self.mask, blocks))
        return [
            ScoreTile(q_side, k_side, every[i][j])
            for i, q_side in enumerate(self.q_bins.sides)
            for j, k_side in enumerate(self.k_bins.sides)
            if some[i][j]
        ]

    def empty_cells(self) -> PooledCells:
        """Cells of zeros, to be filled by a pass."""
        shape = len(self.k_bins.sizes), len(self.q_bins.sizes)
        cells = self.q.new_zeros(2 if self.gain is None else 3, *shape, dtype=self.dtype)
        return PooledCells(cells[0], cells[1], None if self.gain is None else cells[2])

    def empty_statistics(self) -> PlaceStatistics:
        """Statistics of no weights, to be added to by a pass."""
        entropy, distance, total, largest = self.q.new_zeros(4, len(self.q), dtype=self.dtype)
        received = self.k.new_zeros(len(self.k), dtype=self.dtype)
        return PlaceStatistics(entropy, distance, total, received, largest.fill_(-torch.inf))

    def sweep(
        self, tiles: list[ScoreTile], cells: PooledCells | None, statistics: PlaceStatistics | None
    ) -> None:
        """Pass over some tiles; fill the cells and add to the statistics, whichever are not None."""
        weighed = self._weigh(tiles, keep_logs=statistics is not None)
        for run in _runs(tiles, of_bins=cells is not None):
            by_bin, by_group = [], []
            for tile, logs, weights, visible, normal in islice(weighed, len(run)):
                sums = None
                if statistics is not None:
                    if not normal:
                        seen = logs if visible is None else logs.masked_fill(visible == 0.0, -torch.inf)
                        _note_largest(statistics, tile, seen.amax(0))
                    by_group.append(self._sum_keys(statistics, tile, logs, weights))
                    sums = by_group[-1][0][:, 0] if tile.k.width == _group_size(tile.k) else None
                if cells is not None:
                    by_bin.append(self._join_keys(tile, weights, sums))
                if statistics is not None and normal:
                    # The logarithm of a normal number has fewer digits wrong than the score behind it.
                    most = weights if cells is None else by_bin[-1][1]
                    _note_largest(statistics, tile, most.amax(0).log_())
            if cells is not None:
                self._pool(cells, run, *map(_cat, zip(*by_bin, strict=True)))
            if statistics is not None:
                self._add(statistics, run, *map(_cat, zip(*by_group, strict=True)))

    def receive(self, tiles: list[ScoreTile], row_weights: Tensor) -> Tensor:
        """The weights of some tiles, summed over the queries times `row_weights` (T,): (places of keys,)."""
        of_places = row_weights[self.q_bins.places].to(self.dtype)
        received = self.k.new_zeros(len(self.k), dtype=self.dtype)
        for tile, _, weights, *_ in self._weigh(tiles, keep_logs=False):
            received[tile.k.places] += weights @ of_places[tile.q.places]
        return received

    def _join_keys(self, tile: ScoreTile, weights: Tensor, sums: Tensor | None) -> list[Tensor]:
        """The sums, the maxima and, with a gain, the minima of a tile, (bins of keys, queries) each.

        `sums` are those of the weights, where they are known already.
        """
        if self.gain is None:
            sums = self.k_bins.join(weights, tile.k, "sum") if sums is None else sums
            return [sums, self.k_bins.join(weights, tile.k, "amax")]
        entries = weights * self.gain[tile.k.places, None]
        return [self.k_bins.join(entries, tile.k, reduce) for reduce in ("sum", "amax", "amin")]

    def _pool(
        self, cells: PooledCells, run: list[ScoreTile], sums: Tensor, tops: Tensor, lows: Tensor | None = None
    ) -> None:
        """Add what a run of tiles was joined to, (bins of keys, queries) each, to its cells."""
        side = run[0].q
        at = slice(run[0].k.bins.start, run[-1].k.bins.stop), side.bins

        def join(by_key: Tensor, reduce: Literal["sum", "amax", "amin"]) -> Tensor:
            # Copies of a bin's last position must not count twice.
            if side.padding is not None:
                by_key.index_fill_(1, side.padding, 0.0)
            return self.q_bins.join(by_key, side, reduce, dim=1)

        cells.sums[at].add_(join(sums, "sum"))
        of_cells = cells.tops[at]
        torch.maximum(of_cells, join(tops, "amax"), out=of_cells)
        if lows is not None and cells.lows is not None:
            of_cells = cells.lows[at]
            torch.minimum(of_cells, join(lows, "amin"), out=of_cells)

    def _weigh(
        self, tiles: list[ScoreTile], *, keep_logs: bool
    ) -> Iterator[tuple[ScoreTile, Tensor, Tensor, Tensor | None, bool]]:
        """Each tile with its log weights and its weights (keys, queries), valid until the next tile.

        The log weights are lost unless `keep_logs`. Then comes the tile's visibility, as `_log_weights` has
        it: the logarithms of hidden entries are not to be read. The last says whether the weights of all
        others are normal numbers.
        """
        # Memory for one tile of logarithms and one of weights, reused for every tile.
        size = self.q_bins.largest_side * self.k_bins.largest_side
        scratch = self.q.new_empty(2 if keep_logs else 1, size, dtype=self.dtype)
        wide = self.q.new_empty(size) if self.q.dtype != self.dtype else None  # for large scores
        at, shape = None, (0, 0)
        for tile in tiles:
            if tile.q is not at:
                at = tile.q
                q = self.q[at.places].mT  # (D + 1, M)
            k = self.k[tile.k.places]  # (C, D + 1)
            if shape != (len(k), q.shape[1]):
                shape = len(k), q.shape[1]
                logs, weights = (scratch[i, : math.prod(shape)].view(shape) for i in (0, -1))
                products = logs if wide is None else wide[: math.prod(shape)].view(shape)
            visible = self._log_weights(tile, q, k, products, out=logs)
            normal = self.is_normal or (visible is not None and _is_normal(logs))
            if normal:
                torch.exp(logs, out=weights)
                if visible is not None:
                    weights.mul_(visible)
            else:
                if visible is not None:
                    logs.masked_fill_(visible == 0.0, LOG_ZERO)
                exponentials(logs, out=weights)
            if tile.k.padding is not None:
                weights.index_fill_(0, tile.k.padding, 0.0)
            yield tile, logs, weights, visible, normal

    def _are_normal(self) -> bool:
        """Whether every exp(score − lse), of hidden keys too, is certain to be a normal number.

        |q · k| is at most |q| |k|.
        """
        # A bias may be any number, and is not in the norms of q and k.
        if self.mask.biased:
            return False
        longest = self.softcap
        if longest is None:
            q, k = (torch.linalg.vector_norm(x[:, :-1], dim=1).max() for x in (self.q, self.k))
            longest = float(q * k)  # q is scaled
        return longest + float(self.q[:, -1].abs().max()) < -least_log(self.dtype)

    def _log_weights(
        self, tile: ScoreTile, q: Tensor, k: Tensor, products: Tensor, out: Tensor
    ) -> Tensor | None:
        """Write score − lse of a tile of keys by queries to `out`; returns the tile's visibility, or None.

        Visibility is 1, and 0 for hidden entries; None if the mask hides nothing. q is (D + 1, M), k is
        (C, D + 1). The difference is computed in `products`, in float64 where scores are large; it is small
        itself where a weight is not 0. `out` may be the same tensor.
        """
        if self.softcap is None:
            torch.mm(k, q, out=products)
        else:
            torch.mm(k[:, :-1], q[:-1], out=products).mul_(self.scale / self.softcap).tanh_()
            products.mul_(self.softcap).add_(q[-1])
        bias, visible = None, None
        if self.mask.biased or not tile.whole:
            bias, visible = self.mask_tiles.get(self.mask, tile)
        if bias is not None:
            products.add_(bias)
        if products is not out:
            out.copy_(products)
        return visible

    def _sum_keys(
        self, statistics: PlaceStatistics, tile: ScoreTile, logs: Tensor, weights: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The sums of a tile for groups of its keys; what its keys receive is added to the statistics.

        The first sums, (groups, 2, queries), are those of the weights, alone and times the distance of a key
        from the first one of its group; the second ones, (groups, 1, queries), of the weights times their
        logarithms.
        """
        if tile.k.places.start not in self.key_groups:
            self.key_groups[tile.k.places.start] = KeyGroups.make(self.k_bins.places, tile.k, logs)
        ones_and_steps = self.key_groups[tile.k.places.start].ones_and_steps
        grouped = len(ones_and_steps), -1, weights.shape[1]
        total_and_back = torch.bmm(ones_and_steps, weights.view(grouped))
        # logs is scratch memory, and is not read again: its own place takes the product.
        entropy = torch.bmm(ones_and_steps[:, :1], logs.mul_(weights).view(grouped))
        if tile.q.padding is not None:
            weights.index_fill_(1, tile.q.padding, 0.0)
        statistics.received[tile.k.places].add_(weights.sum(1))
        return total_and_back, entropy

    def _add(
        self, statistics: PlaceStatistics, run: list[ScoreTile], total_and_back: Tensor, entropy: Tensor
    ) -> None:
        """Add the sums of a run of tiles to the statistics of its rows."""
        places = run[0].q.places
        first = torch.cat([self.key_groups[tile.k.places.start].first for tile in run])
        total, back = total_and_back.unbind(1)  # (groups, queries) each
        distance = (self.q_positions[places] - first).to(total).mul_(total).sub_(back)
        statistics.entropy[places].sub_(entropy.sum((0, 1)))
        statistics.distance[places].add_(distance.sum(0))
        statistics.total[places].add_(total.sum(0))


def _note_largest(statistics: PlaceStatistics, tile: ScoreTile, logs: Tensor) -> None:
    """Note the largest log weight of each query of a tile, (queries,)."""
    of_rows = statistics.largest[tile.q.places]
    torch.maximum(of_rows, logs, out=of_rows)


def _runs(tiles: list[ScoreTile], *, of_bins: bool) -> Iterator[list[ScoreTile]]:
    """Neighbouring tiles of the same queries, whose sums along the keys are then reduced together.

    With `of_bins`, no bin of keys is in two tiles of a run, and all of them are few enough for one tile.
    """
    run: list[ScoreTile] = []
    for tile in tiles:
        joins = run and tile.q is run[0].q and len(run) < MAX_RUN
        if joins and of_bins:
            first, stop = run[0].k.bins.start, run[-1].k.bins.stop
            joins = tile.k.bins.start == stop and tile.k.bins.stop - first <= KEYS
        if run and not joins:
            yield run
            run = []
        run.append(tile)
    if run:
        yield run


def _cat(parts: tuple[Tensor, ...]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


class KeyGroups(NamedTuple):
    """The keys of a tile side, a few at a time.

    Sums over keys are products with a vector for each group: quick, and long sums would lose digits.
    Distances count from a group's first key, as large positions would lose them too.
    """

    first: Tensor  # (groups, 1) the first key
    ones_and_steps: Tensor  # (groups, 2, size) 1, and the distance of each key from the first

    @classmethod
    def make(cls, places: Tensor, side: TileSide, like: Tensor) -> KeyGroups:
        """Groups of the keys of a side; the factors have the dtype of `like`."""
        keys = places[side.places].view(-1, _group_size(side))
        steps = (keys - keys[:, :1]).to(like)
        return cls(keys[:, :1], torch.stack([torch.ones_like(steps), steps], 1))


def _group_size(side: TileSide) -> int:
    """The keys of a group: of a bin, or another divisor of the side, from 8 to 64 where there is one."""
    if side.width is not None and 8 <= side.width <= 64:
        return side.width
    n = side.places.stop - side.places.start
    return next((size for size in range(64, 7, -1) if n % size == 0), n)


def _with_column(x: Tensor, factor: float, column: Tensor | float) -> Tensor:
    """x (places, D) times a factor, and a last column: (places, D + 1)."""
    joined = x.new_empty(len(x), x.shape[1] + 1)
    torch.mul(x, factor, out=joined[:, :-1])
    joined[:, -1] = column
    return joined


def _is_normal(logs: Tensor) -> bool:
    """Whether the exponentials of a tile, of hidden entries too, are normal numbers."""
    least, most = logs.aminmax()
    return bool(least >= least_log(logs.dtype)) and bool(most <= -least_log(logs.dtype))


class MaskTiles:
    """The mask's part in every tile, cached from head to head where all heads have the same mask."""

    max_tiles = 32  # of 1 MiB each in float32

    def __init__(self, m: MapData, q_bins: Bins, k_bins: Bins) -> None:
        self.q_bins, self.k_bins, self.device, self.dtype = q_bins, k_bins, m.device, m.result_dtype
        self.shape = (1, 1, *m.matrix[2:])
        self.cache: dict[tuple[int, ...], tuple[Mask, Tensor | None, Tensor]] = {}

    def get(self, mask: Mask, tile: ScoreTile) -> tuple[Tensor | None, Tensor]:
        """The bias of a tile of keys by queries, if any, and its visibility: 1, and 0 where it is hidden."""
        place = self._place(mask, tile)
        if place in self.cache and self.cache[place][0] is mask:
            return self.cache[place][1:]
        queries, keys = self.q_bins.places[tile.q.places], self.k_bins.places[tile.k.places]
        at = grid(queries, keys, self.shape, self.device)
        bias = mask.score_bias(at)
        bias = None if bias is None else bias.detach()[0, 0].mT
        allowed = mask.allowed(at)[0, 0].expand(len(queries), len(keys))
        visible = allowed.to(self.dtype).mT.contiguous()
        if len(self.cache) < self.max_tiles:
            self.cache[place] = mask, bias, visible
        return bias, visible

    def _place(self, mask: Mask, tile: ScoreTile) -> tuple[int, ...]:
        """Where a tile is; tiles of a band are equal where they are as far from the diagonal."""
        q, k = tile.q.places, tile.k.places
        if not (mask.biased or tile.q.has_gaps or tile.k.has_gaps) and mask.band(*self.shape[2:]):
            return tile.q.first - tile.k.first, q.stop - q.start, k.stop - k.start
        return q.start, k.start
