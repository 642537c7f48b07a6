"""One head's map at every level of detail, tile by tile, exactly.

At level z a cell is 2^z queries by 2^z keys, and a tile is 256 × 256 cells. Fine tiles come from the map;
coarser ones are put together from four finer ones. This file knows one map; which one is asked for is the
business of `contents`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from regard.attention.masks.base import Blocks
from regard.maps import AttentionMap

SIDE = 256  # cells of a tile
FINE = 4  # levels up to this one are computed from q and k: 4,096 queries by 4,096 keys at most
STEP = 512  # queries and keys of which the mask is asked at a time


class TileCells(NamedTuple):
    """Weights pooled into cells. Where no query of a cell may look at any key of it, `max` is −1."""

    mass: Tensor
    """Summed over the cell's keys, averaged over its queries, (rows, cols)."""
    max: Tensor
    """The greatest weight in it, (rows, cols)."""


Child = Callable[[int, int, int], TileCells]
"""A tile by its level, row and column."""


def levels(T: int, S: int) -> int:
    """How many levels there are: in the last one a single tile holds the whole map."""
    return max(0, (max(T, S, 1) - 1).bit_length() - 8) + 1


def tiles(T: int, S: int, z: int) -> tuple[int, int]:
    """How many rows and columns of tiles a level has."""
    span = SIDE << z
    return -(-T // span), -(-S // span)


def tile(m: AttentionMap, z: int, i: int, j: int, child: Child) -> TileCells:
    """Tile (i, j) of level z of a map (1, 1, T, S); `child` gives the tiles of the level below."""
    _, _, T, S = m.matrix
    if z <= FINE:
        span = SIDE << z
        rows, keys = range(i * span, min(T, (i + 1) * span)), range(j * span, min(S, (j + 1) * span))
        return cells(m, rows, keys, 1 << z)
    high, wide = tiles(T, S, z - 1)
    parts = [
        [child(z - 1, y, x) for x in (2 * j, 2 * j + 1) if x < wide] for y in (2 * i, 2 * i + 1) if y < high
    ]
    mass = torch.cat([torch.cat([part.mass for part in line], 1) for line in parts])
    peak = torch.cat([torch.cat([part.max for part in line], 1) for line in parts])
    counts = queries_of(T, z - 1, 2 * i * SIDE, len(mass))
    return TileCells(_sums(mass * counts, 2) / _sums(counts, 2)[:, :1], _peaks(peak, 2, -1.0))


def cells(m: AttentionMap, rows: range, keys: range, size: int) -> TileCells:
    """Cells of `size` queries by `size` keys over a stretch of the map."""
    shape = (-(-len(rows) // size), -(-len(keys) // size))
    mass, peak = torch.zeros(shape), torch.full(shape, -1.0)
    for some_rows in _even(rows, size):
        for some_keys in _even(keys, size):
            if not _covers(m, some_rows, some_keys)[0]:
                continue
            top, left = (some_rows.start - rows.start) // size, (some_keys.start - keys.start) // size
            high, wide = (-(-(span.stop - span.start) // size) for span in (some_rows, some_keys))
            here = (slice(top, top + high), slice(left, left + wide))
            if size == 1:
                mass[here] = peak[here] = m.tile(some_rows, some_keys).reshape(high, wide).float().cpu()
                continue
            both = m.pool(high, wide, "both", region=(some_rows, some_keys))
            mass[here], peak[here] = (x.reshape(high, wide).float().cpu() for x in both)
    return TileCells(mass, peak.where(seen(m, rows, keys, size), -1.0))


def _even(span: range, size: int) -> list[slice]:
    """The stretch in two: what whole cells cover, and what is left for a smaller one at the end."""
    middle = span.start + len(span) // size * size
    return [slice(a, b) for a, b in ((span.start, middle), (middle, span.stop)) if a < b]


def seen(m: AttentionMap, rows: range, keys: range, size: int) -> Tensor:
    """Which cells hold a key that one of their queries may look at, (rows, cols)."""
    shape = (-(-len(rows) // size), -(-len(keys) // size))
    found = torch.zeros(shape, dtype=torch.bool)
    step = max(size, STEP // size * size)
    for top in range(rows.start, rows.stop, step):
        some_rows = slice(top, min(top + step, rows.stop))
        for left in range(keys.start, keys.stop, step):
            some_keys = slice(left, min(left + step, keys.stop))
            some, every = _covers(m, some_rows, some_keys)
            y, x = (top - rows.start) // size, (left - keys.start) // size
            here = (slice(y, y + step // size), slice(x, x + step // size))
            if every or not some:
                found[here] = every
                continue
            tile = m.mask.tile(some_rows, some_keys, m.matrix, device=m.device)
            found[here] = _peaks(tile.reshape(-1, *tile.shape[-2:])[0].float().cpu(), size, 0.0) > 0
    return found


def without(m: AttentionMap, found: TileCells, z: int, i: int, j: int, key: int) -> TileCells:
    """A tile as it would be if nobody looked at one key: only the cells that hold the key change."""
    _, _, T, S = m.matrix
    span, size = SIDE << z, 1 << z
    column = key // size - j * SIDE
    if not 0 <= column < found.mass.shape[1]:
        return found
    first = (key // size) * size
    rows, keys = slice(i * span, min(T, (i + 1) * span)), slice(first, min(S, first + size))
    weights = m.tile(rows, keys).reshape(rows.stop - rows.start, -1).float().cpu()
    weights[:, key - first] = 0
    counts = queries_of(T, z, i * SIDE, found.mass.shape[0])
    mass, peak = found.mass.clone(), found.max.clone()
    mass[:, column] = _sums(weights, size)[:, 0] / counts[:, 0]
    peak[:, column] = _peaks(weights, size, 0.0)[:, 0].where(peak[:, column] >= 0, -1.0)
    return TileCells(mass, peak)


def queries_of(T: int, z: int, first: int, count: int) -> Tensor:
    """The queries in each of `count` rows of cells from row `first` on: 2^z but at the end. (n, 1)."""
    return (T - (first + torch.arange(count)) * (1 << z)).clamp(max=1 << z).float()[:, None]


def _covers(m: AttentionMap, rows: slice, keys: slice) -> tuple[bool, bool]:
    """Whether a stretch may hold anything visible, and whether all of it is."""
    _, _, T, S = m.matrix
    edges = (rows.start + S - T, rows.stop - 1 + S - T, keys.start, keys.stop - 1)
    first_q, last_q, first_k, last_k = (torch.tensor([[edge]], device=m.device) for edge in edges)
    some, every = m.mask.block_bounds(Blocks(first_q, last_q, first_k, last_k, T, S))
    return bool(some.any()), bool(every.all())


def _sums(x: Tensor, size: int) -> Tensor:
    if size == 1:
        return x
    lines = _blocks(x, size, 0.0).sum(1)  # (R, C · size)
    return lines.view(len(lines), -1, size).sum(2)


def _peaks(x: Tensor, size: int, nothing: float) -> Tensor:
    if size == 1:
        return x
    lines = _blocks(x, size, nothing).amax(1)
    return lines.view(len(lines), -1, size).amax(2)


def _blocks(x: Tensor, size: int, nothing: float) -> Tensor:
    """(rows, cols) as (R, size, C · size), filled up at the far edges."""
    rows, cols = x.shape
    x = pad(x, (0, -cols % size, 0, -rows % size), value=nothing)
    return x.view(-1, size, x.shape[1])
