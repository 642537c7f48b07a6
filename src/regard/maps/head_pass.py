"""One pass over the weights of one head, tile by tile, for its overview, its row statistics, or both.

Tiles hold keys by queries, so that bins are reduced along an axis that is never the last and whole rows are
added at once. A tile is one product of [scale·q, −lse] and [k, 1], and one exp. This file knows one head;
`overview.py` shares heads out among the cores.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from regard.attention.backends.tiles import exponentials, find_visibility, least_log
from regard.attention.masks.base import Mask
from regard.attention.masks.grid import grid
from regard.maps.bins import Bins, TileSide, block_table
from regard.maps.data import MapData
from regard.maps.sweep import LOG_ZERO, finite_lse

QUERIES, KEYS = 512, 512  # of one tile: 1 MiB in float32


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
        self.q_bins, self.k_bins, self.mask_tiles = q_bins, k_bins, mask_tiles
        self.scale, self.softcap = m.scale, m.softcap
        self.mask = m.mask.select(slice(b, b + 1), slice(h, h + 1))
        self.first_position = m.first_position
        self.matrix = m.matrix
        self.dtype = m.result_dtype
        lse, places = finite_lse(m.lse[b, h]), q_bins.places
        q = m.q[b, h, places].to(m.dtype) * (m.scale if m.softcap is None else 1.0)
        self.q = torch.cat([q, -lse[places, None]], -1)  # (places, D + 1)
        k = m.k[b, h // (m.q.shape[1] // m.k.shape[1]), k_bins.places].to(m.dtype)
        self.k = torch.cat([k, k.new_ones(len(k), 1)], -1)  # (places, D + 1)
        self.is_normal = self._are_normal()
        self.gain = None if gain is None else gain[k_bins.places].to(self.dtype)  # (places,)

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
        sums, tops, lows = (self.q.new_zeros(shape, dtype=self.dtype) for _ in range(3))
        return PooledCells(sums, tops, None if self.gain is None else lows)

    def empty_statistics(self) -> PlaceStatistics:
        """Statistics of zeros, to be added to by a pass."""
        sides = (self.q, self.q, self.q, self.k)
        return PlaceStatistics(*(x.new_zeros(len(x), dtype=self.dtype) for x in sides))

    def sweep(
        self, tiles: list[ScoreTile], cells: PooledCells | None, statistics: PlaceStatistics | None
    ) -> None:
        """Pass over some tiles; fill the cells and add to the statistics, whichever are not None."""
        for tile, logs, weights in self._weigh(tiles, keep_logs=statistics is not None):
            if cells is not None:
                gain = None if self.gain is None else self.gain[tile.k.places, None]
                self._pool(cells, tile, weights if gain is None else weights * gain)
            if statistics is not None:
                self._add(statistics, tile, logs, weights)

    def receive(self, tiles: list[ScoreTile], row_weights: Tensor) -> Tensor:
        """The weights of some tiles, summed over the queries times `row_weights` (T,): (places of keys,)."""
        of_places = row_weights[self.q_bins.places].to(self.dtype)
        received = self.k.new_zeros(len(self.k), dtype=self.dtype)
        for tile, _, weights in self._weigh(tiles, keep_logs=False):
            received[tile.k.places] += weights @ of_places[tile.q.places]
        return received

    def _pool(self, cells: PooledCells, tile: ScoreTile, entries: Tensor) -> None:
        """Add the entries (keys, queries) of a tile to its cells."""
        at = tile.k.bins, tile.q.bins

        def join(reduce: Literal["sum", "amax", "amin"]) -> Tensor:
            by_key = self.k_bins.join(entries, tile.k, reduce)  # (bins of keys, queries)
            return self.q_bins.join(by_key.mT, tile.q, reduce).mT

        cells.sums[at] += join("sum")
        cells.tops[at] = torch.maximum(cells.tops[at], join("amax"))
        if cells.lows is not None:
            cells.lows[at] = torch.minimum(cells.lows[at], join("amin"))

    def _weigh(
        self, tiles: list[ScoreTile], *, keep_logs: bool
    ) -> Iterator[tuple[ScoreTile, Tensor, Tensor]]:
        """Each tile with its log weights and its weights (keys, queries), valid until the next tile.

        The log weights are lost unless `keep_logs`.
        """
        # Memory for one tile of logarithms and one of weights, reused for every tile.
        size = self.q_bins.largest_side * self.k_bins.largest_side
        scratch = self.q.new_empty(2 if keep_logs else 1, size, dtype=self.dtype)
        wide = self.q.new_empty(size) if self.q.dtype != self.dtype else None  # for large scores
        at, q = None, self.q
        for tile in tiles:
            if tile.q != at:
                at = tile.q
                q = self.q[at.places].mT.contiguous()  # (D + 1, M): the layout of a right factor
            k = self.k[tile.k.places]  # (C, D + 1)
            C, M = len(k), q.shape[1]
            logs, weights = (scratch[i, : C * M].view(C, M) for i in (0, -1))
            products = logs if wide is None else wide[: C * M].view(C, M)
            hidden = self._log_weights(tile, q, k, products, out=logs)
            if self.is_normal:
                torch.exp(logs, out=weights)
                if hidden is not None:
                    weights.masked_fill_(hidden, 0.0)
            else:
                exponentials(logs if hidden is None else logs.masked_fill_(hidden, LOG_ZERO), out=weights)
            yield tile, logs, weights

    def _are_normal(self) -> bool:
        """Whether every exp(score − lse), of hidden keys too, is certain to be a normal number.

        |q · k| is at most |q| |k|.
        """
        if self.mask.biased:
            return False
        lse = -self.q[:, -1]
        longest = self.q[:, :-1].norm(dim=1).max() * self.k[:, :-1].norm(dim=1).max()
        if self.softcap is not None:
            longest = longest.new_tensor(self.softcap)
        return bool(longest + lse.abs().max() < -least_log(self.dtype))

    def _log_weights(
        self, tile: ScoreTile, q: Tensor, k: Tensor, products: Tensor, out: Tensor
    ) -> Tensor | None:
        """Write score − lse of a tile of keys by queries to `out`; returns what the mask hides of it.

        q is (D + 1, M), k (C, D + 1). The difference is computed in `products`, in float64 where scores are
        large; it is small itself where a weight is not 0. `out` may be the same tensor.
        """
        if self.softcap is None:
            torch.mm(k, q, out=products)
        else:
            torch.mm(k[:, :-1], q[:-1], out=products).mul_(self.scale / self.softcap).tanh_()
            products.mul_(self.softcap).add_(q[-1])
        bias, hidden = None, None
        if self.mask.biased or not tile.whole:
            bias, hidden = self.mask_tiles.get(self.mask, tile)
        if bias is not None:
            products.add_(bias)
        if products is not out:
            out.copy_(products)
        return hidden

    def _add(self, statistics: PlaceStatistics, tile: ScoreTile, logs: Tensor, weights: Tensor) -> None:
        """Add a tile of keys by queries to the statistics of its rows and columns."""
        queries, keys = self.q_bins.places[tile.q.places], self.k_bins.places[tile.k.places]
        # Sums over keys are products with a vector, a few keys at a time: quick, and long sums would lose
        # digits. Distances count from the first of those few, as large positions would lose them too.
        C, M = weights.shape
        keys = keys.view(-1, 1, _group_size(C))  # (groups, 1, size)
        first = keys[:, 0, :1]
        steps = (keys - first[:, None]).to(logs)
        ones = torch.ones_like(steps)
        grouped = weights.view(len(keys), -1, M)
        total, back = torch.bmm(torch.cat([ones, steps], 1), grouped).unbind(1)  # (groups, M) each
        distance = ((queries + self.first_position - first).to(logs) * total - back).sum(0)
        entropy = torch.bmm(ones, logs.mul_(weights).view(grouped.shape)).sum((0, 1))
        statistics.entropy[tile.q.places] -= entropy
        statistics.distance[tile.q.places] += distance
        statistics.total[tile.q.places] += total.sum(0)
        statistics.received[tile.k.places] += weights.sum(1)


def _group_size(n: int) -> int:
    """A divisor of n, from 8 to 64 where there is one."""
    return next((size for size in range(64, 7, -1) if n % size == 0), n)


class MaskTiles:
    """The mask's part in every tile, cached from head to head where all heads have the same mask."""

    max_tiles = 64  # of 256 KiB each

    def __init__(self, m: MapData, q_bins: Bins, k_bins: Bins) -> None:
        self.q_bins, self.k_bins, self.device = q_bins, k_bins, m.device
        self.shape = (1, 1, *m.matrix[2:])
        self.cache: dict[tuple[int, int], tuple[Mask, Tensor | None, Tensor]] = {}

    def get(self, mask: Mask, tile: ScoreTile) -> tuple[Tensor | None, Tensor]:
        """The bias of a tile of keys by queries, if any, and its hidden entries."""
        place = (tile.q.places.start, tile.k.places.start)
        if place in self.cache and self.cache[place][0] is mask:
            return self.cache[place][1:]
        queries, keys = self.q_bins.places[tile.q.places], self.k_bins.places[tile.k.places]
        at = grid(queries, keys, self.shape, self.device)
        bias = mask.score_bias(at)
        bias = None if bias is None else bias.detach()[0, 0].mT
        hidden = (~mask.allowed(at)[0, 0]).expand(len(queries), len(keys)).mT.contiguous()
        if len(self.cache) < self.max_tiles:
            self.cache[place] = mask, bias, hidden
        return bias, hidden
