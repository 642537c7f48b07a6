"""One pass over the weights of one head, tile by tile, for its overview, its row statistics, or both.

Tiles hold keys by queries, so that bins are reduced along an axis that is never the last and whole rows are
added at once. A tile is one product of [scale·q, −lse, 1] and [k, 1, 0], and one exp; padding has a weight of
0 because its last entry is −1e30. This file knows one head; `overview.py` shares heads out among the cores.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from regard.attention.backends.tiles import visits_between
from regard.attention.masks.base import Mask
from regard.attention.masks.grid import grid
from regard.maps.bins import Bins, tile_sides
from regard.maps.data import MapData
from regard.maps.sweep import EMPTY_ROW_LSE, LOG_ZERO, finite_lse

QUERIES, KEYS = 512, 512  # of one tile: 1 MiB in float32


class ScoreTile(NamedTuple):
    """Runs of queries and of keys; `whole` if every one of the queries may see every one of the keys."""

    q_runs: slice
    k_runs: slice
    whole: bool


class PooledCells(NamedTuple):
    """The sum and the maximum of the weights in every cell of one head."""

    sums: Tensor  # (runs of keys, runs of queries)
    tops: Tensor  # (runs of keys, runs of queries)


class RunStatistics(NamedTuple):
    """Statistics of one head's rows and columns, for every position of a run."""

    entropy: Tensor  # (runs of queries, width)
    distance: Tensor  # (runs of queries, width)
    total: Tensor  # (runs of queries, width) the sum of a row
    received: Tensor  # (runs of keys, width)


class HeadPass:
    """One head of a map, its q and k laid out in runs.

    `b` and `h` are the numbers of the sequence and of the head, `q_bins` and `k_bins` the bins of queries and
    keys; `mask_tiles` is shared by all heads.
    """

    def __init__(self, m: MapData, b: int, h: int, q_bins: Bins, k_bins: Bins, mask_tiles: MaskTiles) -> None:
        self.q_bins, self.k_bins, self.mask_tiles = q_bins, k_bins, mask_tiles
        self.scale, self.softcap = m.scale, m.softcap
        self.mask = m.mask.select(slice(b, b + 1), slice(h, h + 1))
        self.first_position = m.first_position
        self.matrix = m.matrix
        self.dtype = m.result_dtype
        lse, one = finite_lse(m.lse[b, h]), m.lse.new_ones(1, 1)
        q = torch.cat(
            [
                m.q[b, h].to(m.dtype) * (m.scale if m.softcap is None else 1.0),
                -lse[:, None],
                one.expand(len(lse), 1),
            ],
            -1,
        )
        k = m.k[b, h // (m.q.shape[1] // m.k.shape[1])].to(m.dtype)
        k = torch.cat([k, one.expand(len(k), 1), torch.zeros_like(one).expand(len(k), 1)], -1)
        self.q, self.k = q[q_bins.places.to(q.device)], k[k_bins.places.to(k.device)]  # (runs, width, D + 2)
        self.q[..., -2].masked_fill_(q_bins.padded.to(q.device), -EMPTY_ROW_LSE)
        self.k[..., -1].masked_fill_(k_bins.padded.to(k.device), -EMPTY_ROW_LSE)

    def tiles(self) -> list[ScoreTile]:
        """Every tile with a visible key."""
        q_sides, k_sides = list(tile_sides(self.q_bins, QUERIES)), list(tile_sides(self.k_bins, KEYS))
        edges = [
            [*(side.first for side in sides), n]
            for sides, n in zip((q_sides, k_sides), self.matrix[2:], strict=True)
        ]
        runs_from = {side.first: side.runs for side in k_sides}
        return [
            ScoreTile(side.runs, runs_from[column.keys.start], column.whole)
            for side, (_, columns) in zip(q_sides, visits_between(self.mask, *edges), strict=True)
            for column in columns
        ]

    def empty_cells(self) -> PooledCells:
        """Cells of zeros, to be filled by a pass."""
        return PooledCells(*(self.q.new_zeros(len(self.k), len(self.q), dtype=self.dtype) for _ in range(2)))

    def empty_statistics(self) -> RunStatistics:
        """Statistics of zeros, to be added to by a pass."""
        sides = (self.q, self.q, self.q, self.k)
        return RunStatistics(*(x.new_zeros(x.shape[:2], dtype=self.dtype) for x in sides))

    def sweep(
        self, tiles: list[ScoreTile], cells: PooledCells | None, statistics: RunStatistics | None
    ) -> None:
        """Pass over some tiles; fill the cells and add to the statistics, whichever are not None."""
        # Memory for one tile of logarithms and one of weights, reused for every tile.
        size = max(QUERIES, self.q_bins.width) * max(KEYS, self.k_bins.width)
        scratch = self.q.new_empty(1 if statistics is None else 2, size, dtype=self.dtype)
        wide = self.q.new_empty(size) if self.q.dtype != self.dtype else None  # for large scores
        at, q = None, self.q
        for tile in tiles:
            if tile.q_runs != at:
                at = tile.q_runs
                q = self.q[at].flatten(0, 1).mT.contiguous()  # (D + 2, M): the layout of a right factor
            k = self.k[tile.k_runs].flatten(0, 1)  # (C, D + 2)
            C, M = len(k), q.shape[1]
            logs, weights = (scratch[i, : C * M].view(C, M) for i in (0, -1))
            products = logs if wide is None else wide[: C * M].view(C, M)
            self._log_weights(tile, q, k, products, out=logs)
            torch.exp(logs, out=weights)
            if cells is not None:
                runs = weights.view(-1, self.k_bins.width, M)
                shape = (len(runs), -1, self.q_bins.width)  # (runs of keys, runs of queries, width)
                cells.sums[tile.k_runs, tile.q_runs] = runs.sum(1).view(shape).sum(-1)
                cells.tops[tile.k_runs, tile.q_runs] = runs.amax(1).view(shape).amax(-1)
            if statistics is not None:
                self._add(statistics, tile, logs, weights)

    def _log_weights(self, tile: ScoreTile, q: Tensor, k: Tensor, products: Tensor, out: Tensor) -> None:
        """Write score − lse of a tile of keys by queries to `out`, at most −1e30 on padding.

        q is (D + 2, M), k (C, D + 2). The difference is computed in `products`, in float64 where scores are
        large; it is small itself where a weight is not 0. `out` may be the same tensor.
        """
        if self.softcap is None:
            torch.mm(k, q, out=products)
        else:
            torch.mm(k[:, :-2], q[:-2], out=products).mul_(self.scale / self.softcap).tanh_().mul_(
                self.softcap
            )
            products.addmm_(k[:, -2:], q[-2:])
        bias, hidden = None, None
        if self.mask.biased or not tile.whole:
            bias, hidden = self.mask_tiles.get(self.mask, tile)
        if bias is not None:
            products.add_(bias)
        if products is not out:
            out.copy_(products)
        if hidden is not None:
            out.masked_fill_(hidden, LOG_ZERO)

    def _add(self, statistics: RunStatistics, tile: ScoreTile, logs: Tensor, weights: Tensor) -> None:
        """Add a tile of keys by queries to the statistics of its rows and columns."""
        queries, keys = (
            bins.places[runs].flatten().to(logs.device)
            for bins, runs in ((self.q_bins, tile.q_runs), (self.k_bins, tile.k_runs))
        )
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
        statistics.entropy[tile.q_runs] -= entropy.view(-1, self.q_bins.width)
        statistics.distance[tile.q_runs] += distance.view(-1, self.q_bins.width)
        statistics.total[tile.q_runs] += total.sum(0).view(-1, self.q_bins.width)
        statistics.received[tile.k_runs] += weights.sum(1).view(-1, self.k_bins.width)


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
        place = (tile.q_runs.start, tile.k_runs.start)
        if place in self.cache and self.cache[place][0] is mask:
            return self.cache[place][1:]
        queries, keys = self.q_bins.places[tile.q_runs].flatten(), self.k_bins.places[tile.k_runs].flatten()
        at = grid(queries, keys, self.shape, self.device)
        bias = mask.score_bias(at)
        bias = None if bias is None else bias.detach()[0, 0].mT
        hidden = (~mask.allowed(at)[0, 0]).expand(len(queries), len(keys)).mT.contiguous()
        if len(self.cache) < self.max_tiles:
            self.cache[place] = mask, bias, hidden
        return bias, hidden
