"""One pass over the weights of one head, tile by tile, for its overview and, if asked for, its statistics.

Tiles hold keys by queries, so that bins are reduced along an axis that is never the last and whole rows are
added at once. A tile is one product of [scale·q, −lse, 1] and [k, 1, 0], and one exp; padding has a weight of
0 because its last entry is −1e30.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from regard.attention.backends.tiles import visits_between
from regard.attention.masks.base import Mask
from regard.attention.masks.grid import grid
from regard.maps.bins import Bins, cuts
from regard.maps.sweep import NOTHING, anchored, first_position

if TYPE_CHECKING:
    from regard.maps.map import AttentionMap

QUERIES, KEYS = 512, 512  # of one tile: 1 MiB in float32
HIDDEN = -1e4  # the logarithm of a weight that is 0: exp gives 0, and 0 · −1e4 is 0 where 0 · −inf is NaN


class ScoreTile(NamedTuple):
    """Runs of queries and of keys; `whole` if every one of the queries may look at every one of the keys."""

    q_runs: slice
    k_runs: slice
    whole: bool


class PooledCells(NamedTuple):
    """What the cells of one head hold."""

    sums: Tensor  # (runs of keys, runs of queries)
    tops: Tensor  # (runs of keys, runs of queries)


class RowStats(NamedTuple):
    """Statistics of one head's rows and columns, for every place of a run."""

    entropy: Tensor  # (runs of queries, width)
    distance: Tensor  # (runs of queries, width)
    total: Tensor  # (runs of queries, width) the sum of a row
    received: Tensor  # (runs of keys, width)


class HeadPass:
    """One head of a map, its q and k laid out in runs."""

    def __init__(self, m: AttentionMap, b: int, h: int, over_q: Bins, over_k: Bins, seen: MaskTiles) -> None:
        self.over_q, self.over_k, self.seen, self.softcap = over_q, over_k, seen, m.softcap
        self.mask = m.mask.select(slice(b, b + 1), slice(h, h + 1))
        self.first = first_position(m)
        self.matrix = m.matrix
        self.dtype = m.result_dtype
        lse, one = anchored(m.lse[b, h]), m.lse.new_ones(1, 1)
        q = torch.cat([m.q[b, h].to(m.dtype) * m.scale, -lse[:, None], one.expand(len(lse), 1)], -1)
        k = m.k[b, h // (m.q.shape[1] // m.k.shape[1])].to(m.dtype)
        k = torch.cat([k, one.expand(len(k), 1), torch.zeros_like(one).expand(len(k), 1)], -1)
        self.q, self.k = q[over_q.places.to(q.device)], k[over_k.places.to(k.device)]  # (runs, width, D + 2)
        self.q[..., -2].masked_fill_(over_q.padded.to(q.device), -NOTHING)
        self.k[..., -1].masked_fill_(over_k.padded.to(k.device), -NOTHING)

    def tiles(self) -> list[ScoreTile]:
        """Every tile in which something may be seen."""
        q_cuts, k_cuts = list(cuts(self.over_q, QUERIES)), list(cuts(self.over_k, KEYS))
        edges = [
            [*(cut.first for cut in side), n]
            for side, n in zip((q_cuts, k_cuts), self.matrix[2:], strict=True)
        ]
        starting_at = {cut.first: cut.runs for cut in k_cuts}
        return [
            ScoreTile(cut.runs, starting_at[column.keys.start], column.whole)
            for cut, (_, columns) in zip(q_cuts, visits_between(self.mask, *edges), strict=True)
            for column in columns
        ]

    def cells(self) -> PooledCells:
        """Empty cells, to be filled by a pass."""
        return PooledCells(*(self.q.new_zeros(len(self.k), len(self.q), dtype=self.dtype) for _ in range(2)))

    def lines(self) -> RowStats:
        """Empty statistics, to be added to by a pass."""
        sides = (self.q, self.q, self.q, self.k)
        return RowStats(*(x.new_zeros(x.shape[:2], dtype=self.dtype) for x in sides))

    def sweep(self, tiles: list[ScoreTile], cells: PooledCells | None, lines: RowStats | None) -> None:
        """Pass over some tiles and put down what is asked for."""
        size = max(QUERIES, self.over_q.width) * max(KEYS, self.over_k.width)
        scratch = self.q.new_empty(1 if lines is None else 2, size, dtype=self.dtype)
        wide = self.q.new_empty(size) if self.q.dtype != self.dtype else None  # for large scores
        at, q = None, self.q
        for tile in tiles:
            if tile.q_runs != at:
                at = tile.q_runs
                q = self.q[at].flatten(0, 1).mT.contiguous()  # (D + 2, M): lies as a right factor should
            k = self.k[tile.k_runs].flatten(0, 1)  # (C, D + 2)
            C, M = len(k), q.shape[1]
            logs, weights = (scratch[i, : C * M].view(C, M) for i in (0, -1))
            products = logs if wide is None else wide[: C * M].view(C, M)
            self._log_weights(tile, q, k, products, out=logs)
            torch.exp(logs, out=weights)
            if cells is not None:
                runs = weights.view(-1, self.over_k.width, M)
                shape = (len(runs), -1, self.over_q.width)  # (runs of keys, runs of queries, width)
                cells.sums[tile.k_runs, tile.q_runs] = runs.sum(1).view(shape).sum(-1)
                cells.tops[tile.k_runs, tile.q_runs] = runs.amax(1).view(shape).amax(-1)
            if lines is not None:
                self._add(lines, tile, logs, weights)

    def _log_weights(self, tile: ScoreTile, q: Tensor, k: Tensor, products: Tensor, out: Tensor) -> None:
        """score − lse for a tile of keys by queries, at most −1e30 on padding: q (D + 2, M), k (C, D + 2).

        The difference is taken in `products`, in float64 where scores are large; it is small itself where a
        weight is not 0, and goes to `out`, which may be the same.
        """
        if self.softcap is None:
            torch.mm(k, q, out=products)
        else:
            torch.mm(k[:, :-2], q[:-2], out=products).div_(self.softcap).tanh_().mul_(self.softcap)
            products.addmm_(k[:, -2:], q[-2:])
        added, hidden = None, None
        if self.mask.biased or not tile.whole:
            added, hidden = self.seen.tile(self.mask, tile)
        if added is not None:
            products.add_(added)
        if products is not out:
            out.copy_(products)
        if hidden is not None:
            out.masked_fill_(hidden, HIDDEN)

    def _add(self, lines: RowStats, tile: ScoreTile, logs: Tensor, weights: Tensor) -> None:
        """Add what a tile of keys by queries means for its rows and columns."""
        queries, keys = (
            over.places[runs].flatten().to(logs.device)
            for over, runs in ((self.over_q, tile.q_runs), (self.over_k, tile.k_runs))
        )
        # Sums over keys are products with a vector, a few keys at a time: quick, and long sums would lose
        # digits. Distances count from the first of those few, as large positions would lose them too.
        C, M = weights.shape
        keys = keys.view(-1, 1, _few(C))  # (groups, 1, few)
        first = keys[:, 0, :1]
        steps = (keys - first[:, None]).to(logs)
        ones = torch.ones_like(steps)
        grouped = weights.view(len(keys), -1, M)
        total, back = torch.bmm(torch.cat([ones, steps], 1), grouped).unbind(1)  # (groups, M) each
        distance = ((queries + self.first - first).to(logs) * total - back).sum(0)
        entropy = torch.bmm(ones, logs.mul_(weights).view(grouped.shape)).sum((0, 1))
        lines.entropy[tile.q_runs] -= entropy.view(-1, self.over_q.width)
        lines.distance[tile.q_runs] += distance.view(-1, self.over_q.width)
        lines.total[tile.q_runs] += total.sum(0).view(-1, self.over_q.width)
        lines.received[tile.k_runs] += weights.sum(1).view(-1, self.over_k.width)


def _few(n: int) -> int:
    """A number that divides n, from 8 to 64 where there is one."""
    return next((few for few in range(64, 7, -1) if n % few == 0), n)


class MaskTiles:
    """What the mask says of tiles, remembered from head to head where all heads have the same."""

    most = 64  # tiles, of 256 KiB each

    def __init__(self, m: AttentionMap, over_q: Bins, over_k: Bins) -> None:
        self.over_q, self.over_k, self.device = over_q, over_k, m.device
        self.shape = (1, 1, *m.matrix[2:])
        self.kept: dict[tuple[int, int], tuple[Mask, Tensor | None, Tensor]] = {}

    def tile(self, mask: Mask, tile: ScoreTile) -> tuple[Tensor | None, Tensor]:
        """What is added to the scores of a tile of keys by queries, and which of them are hidden."""
        place = (tile.q_runs.start, tile.k_runs.start)
        if place in self.kept and self.kept[place][0] is mask:
            return self.kept[place][1:]
        queries, keys = self.over_q.places[tile.q_runs].flatten(), self.over_k.places[tile.k_runs].flatten()
        at = grid(queries, keys, self.shape, self.device)
        added = mask.score_bias(at)
        added = None if added is None else added.detach()[0, 0].mT
        hidden = (~mask.allowed(at)[0, 0]).expand(len(queries), len(keys)).mT.contiguous()
        if len(self.kept) < self.most:
            self.kept[place] = mask, added, hidden
        return added, hidden
