"""The whole map at any resolution, exactly: weights pooled into cells, mass and maximum in one pass.

Bins differ in size by one at most. Padding each to the same size, with queries and keys whose weight is 0,
makes pooling a reduction over one axis of a tile; tiles hold keys by queries, so that this axis is never the
last and whole rows are added at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import torch
from torch import Tensor

from regard.attention.rules import Mask, grid
from regard.attention.tiles import visits_between
from regard.maps.sweep import NOTHING, anchored

if TYPE_CHECKING:
    from regard.maps.map import AttentionMap

QUERIES, KEYS = 512, 512  # of one tile: 1 MiB in float32


Region = tuple[slice, slice]
"""Some rows and some keys of a map: `(slice(0, 128), slice(None))`."""


class Overview(NamedTuple):
    mass: Tensor  # (B, H, rows, cols)
    max: Tensor  # (B, H, rows, cols)


def pool(m: AttentionMap, rows: int, cols: int) -> Overview:
    """Both overviews of every head, (B, H, rows, cols)."""
    _, _, T, S = m.matrix
    for name, n, most in (("rows", rows, T), ("cols", cols, S)):
        if not isinstance(n, int) or not 1 <= n <= most:
            raise ValueError(f"{name}: expected a whole number from 1 to {most}, got {n!r}")
    return _on_gpu(m, rows, cols) or _by_tiles(m, rows, cols)


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


def _on_gpu(m: AttentionMap, rows: int, cols: int) -> Overview | None:
    """The overview from the Triton kernel, if there is one for this map."""
    if m.device.type != "cuda":
        return None
    from regard.attention import triton_pool

    mask = m.mask.simplified(m.matrix)
    if triton_pool.refuses(m.q, m.k, mask, rows, cols) is not None:
        return None
    return Overview(*triton_pool.pool(m.q, m.k, m.lse, mask, m.scale, m.softcap, rows, cols))


class Bins(NamedTuple):
    """Positions cut into bins, and each bin into equal runs short enough for a tile, padded at their ends."""

    edges: list[int]
    per_bin: int  # runs in a bin
    places: Tensor  # (runs, width) positions; a padded one repeats a real one
    padded: Tensor  # (runs, width)


def bins(n: int, count: int, widest: int) -> Bins:
    """Edges at floor(i·n/count); runs of at most `widest`."""
    edges = [i * n // count for i in range(count + 1)]
    size = -(-n // count)
    per_bin = -(-size // widest)
    width = -(-size // per_bin)
    first, last = torch.tensor(edges[:-1]).view(-1, 1), torch.tensor(edges[1:]).view(-1, 1)
    index = first + torch.arange(per_bin * width)  # (count, per_bin · width)
    padded = index >= last
    return Bins(edges, per_bin, index.where(~padded, first).view(-1, width), padded.view(-1, width))


def _by_tiles(m: AttentionMap, rows: int, cols: int) -> Overview:
    B, H, T, S = m.matrix
    group = H // m.k.shape[1]
    over_q, over_k = bins(T, rows, QUERIES), bins(S, cols, KEYS)
    mass, peak = (m.lse.new_zeros(B, H, rows, cols) for _ in range(2))
    cells = (cols, over_k.per_bin, rows, over_q.per_bin)
    seen = Seen(m, over_q, over_k)
    # One head alone is shared out by its queries, every so many blocks of them: later ones may see more.
    shares = min(-(-threads_for(m.device) // max(B * H, 1)), len(list(cuts(over_q, QUERIES))))

    def pool_one(unit: tuple[int, int, int]) -> tuple[Tensor, Tensor]:
        b, h, share = unit
        q, k = _padded(m, b, h, h // group, over_q, over_k)
        mask = m.mask.narrowed(slice(b, b + 1), slice(h, h + 1))
        part = slice(share, None, shares)
        sums, tops = _pool_head(m, mask, q, k, over_q, over_k, seen, part)  # (runs of keys, runs of queries)
        return sums.view(cells).sum((1, 3)).mT, tops.view(cells).amax((1, 3)).mT

    units = list(product(range(B), range(H), range(shares)))
    for (b, h, _), (sums, tops) in zip(units, each(pool_one, units, m.device), strict=True):
        mass[b, h] += sums
        torch.maximum(peak[b, h], tops, out=peak[b, h])
    return Overview(mass.div_(torch.tensor(over_q.edges).diff().to(mass).view(-1, 1)), peak)


Unit = TypeVar("Unit")
Found = TypeVar("Found")


def threads_for(device: torch.device) -> int:
    """How many units of work go on at once: on a CPU one a core, better than cores that share a tile."""
    return torch.get_num_threads() if device.type == "cpu" else 1


def each(work: Callable[[Unit], Found], units: list[Unit], device: torch.device) -> Iterator[Found]:
    """What the work gives for every unit, in their order."""
    threads = min(threads_for(device), len(units))
    if threads < 2:
        yield from map(work, units)
        return
    before = torch.get_num_threads()
    try:
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as workers:
            yield from workers.map(torch.no_grad()(work), units)
    finally:
        torch.set_num_threads(before)


def _padded(m: AttentionMap, b: int, h: int, g: int, over_q: Bins, over_k: Bins) -> tuple[Tensor, Tensor]:
    """One head's q and k in runs, widened so that their product is score − lse, and −1e30 on padding."""
    lse, one = anchored(m.lse[b, h]), m.lse.new_ones(1, 1)
    q = torch.cat([m.q[b, h].to(m.dtype) * m.scale, -lse[:, None], one.expand(len(lse), 1)], -1)
    k = m.k[b, g].to(m.dtype)
    k = torch.cat([k, one.expand(len(k), 1), torch.zeros_like(one).expand(len(k), 1)], -1)
    q, k = q[over_q.places.to(q.device)], k[over_k.places.to(k.device)]  # (runs, width, D + 2)
    q[..., -2].masked_fill_(over_q.padded.to(q.device), -NOTHING)
    k[..., -1].masked_fill_(over_k.padded.to(k.device), -NOTHING)
    return q, k


class Seen:
    """What the mask says of tiles, remembered from head to head where all heads have the same."""

    most = 64  # tiles, of 256 KiB each

    def __init__(self, m: AttentionMap, over_q: Bins, over_k: Bins) -> None:
        self.over_q, self.over_k, self.device = over_q, over_k, m.device
        self.shape = (1, 1, *m.matrix[2:])
        self.kept: dict[tuple[int, int], tuple[Mask, Tensor | None, Tensor]] = {}

    def tile(self, mask: Mask, q_runs: slice, k_runs: slice) -> tuple[Tensor | None, Tensor]:
        """What is added to the scores of a tile of keys by queries, and which of them are hidden."""
        place = (q_runs.start, k_runs.start)
        if place in self.kept and self.kept[place][0] is mask:
            return self.kept[place][1:]
        queries, keys = self.over_q.places[q_runs].flatten(), self.over_k.places[k_runs].flatten()
        at = grid(queries, keys, self.shape, self.device)
        added = mask.added(at)
        added = None if added is None else added.detach()[0, 0].mT
        hidden = (~mask.allowed(at)[0, 0]).expand(len(queries), len(keys)).mT.contiguous()
        if len(self.kept) < self.most:
            self.kept[place] = mask, added, hidden
        return added, hidden


def _pool_head(
    m: AttentionMap, mask: Mask, q: Tensor, k: Tensor, over_q: Bins, over_k: Bins, seen: Seen, part: slice
) -> tuple[Tensor, Tensor]:
    """Sum and maximum of the weights of one head between runs of keys and runs of queries.

    `part` says which blocks of queries; the others stay 0.
    """
    sums, tops = (q.new_zeros(len(k), len(q)) for _ in range(2))
    width = q.shape[1]
    q_cuts, k_cuts = (list(cuts(over, most)) for over, most in ((over_q, QUERIES), (over_k, KEYS)))
    edges = ([cut.first for cut in q_cuts] + [m.matrix[2]], [cut.first for cut in k_cuts] + [m.matrix[3]])
    starting_at = {cut.first: cut.runs for cut in k_cuts}
    scratch = q.new_empty(max(QUERIES, q.shape[1]) * max(KEYS, k.shape[1]))
    visits = list(zip(q_cuts, visits_between(mask, *edges), strict=True))
    for (q_runs, _), (_, columns) in visits[part]:
        q_tile = q[q_runs].flatten(0, 1).mT.contiguous()  # (D + 2, M): lies as a right factor should
        M = q_tile.shape[1]
        for column in columns:
            k_runs = starting_at[column.keys.start]
            k_tile = k[k_runs].flatten(0, 1)  # (C, D + 2)
            logs = scratch[: len(k_tile) * M].view(len(k_tile), M)
            _log_weights(q_tile, k_tile, m.softcap, out=logs)
            if mask.biased or not column.whole:
                added, hidden = seen.tile(mask, q_runs, k_runs)
                if added is not None:
                    logs.add_(added)
                logs.masked_fill_(hidden, -torch.inf)
            weights = logs.exp_().view(-1, k.shape[1], M)  # (runs of keys, width, M)
            shape = (len(weights), -1, width)  # (runs of keys, runs of queries, width)
            sums[k_runs, q_runs] = weights.sum(1).view(shape).sum(-1)
            tops[k_runs, q_runs] = weights.amax(1).view(shape).amax(-1)
    return sums, tops


def _log_weights(q: Tensor, k: Tensor, softcap: float | None, out: Tensor) -> Tensor:
    """score − lse for a tile of keys by queries, −1e30 on padding: k (C, D + 2), q (D + 2, M)."""
    if softcap is None:
        return torch.mm(k, q, out=out)
    scores = torch.mm(k[:, :-2], q[:-2], out=out).div_(softcap).tanh_().mul_(softcap)
    return scores.addmm_(k[:, -2:], q[-2:])


class Cut(NamedTuple):
    """Some runs that make the side of a tile, and the first position in them."""

    runs: slice
    first: int


def cuts(over: Bins, most: int) -> Iterator[Cut]:
    """The runs in pieces of at most `most` positions."""
    total, width = over.places.shape
    step = max(1, most // width)
    for start in range(0, total, step):
        yield Cut(slice(start, min(start + step, total)), int(over.places[start, 0]))
