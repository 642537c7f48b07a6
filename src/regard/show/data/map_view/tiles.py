"""One head's map at every level of detail, tile by tile, exactly.

At level z a cell is 2^z queries by 2^z keys, and a tile is 256 × 256 cells. Fine tiles are computed from the
map; coarser ones, and those whose parts are known, are assembled from four tiles of the level below. In place
of single tokens a cell may count words or sentences, which are given by their edges. This file knows one map;
`contents` knows which map a tile is requested of.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, max_pool2d

from regard.attention.masks.base import Blocks
from regard.maps import AttentionMap, LinearAttentionMap, WeightedMap
from regard.maps.data import MapData
from regard.show.data.map_view.display_precision import for_display
from regard.support.lru import LRUCache

SIDE = 256  # cells of a tile
FINE = 4  # levels up to this one are computed from q and k: 4,096 queries by 4,096 keys at most
STEP = 512  # queries and keys for which the mask is evaluated at a time


ShownMap = AttentionMap | LinearAttentionMap | WeightedMap
Edges = Sequence[int]
"""Where units begin on an axis, in tokens, and the size of the axis: n + 1 increasing numbers for n units."""


class TileCells(NamedTuple):
    """Weights pooled into cells. Where no query of a cell may see any key of it, `max` is −1.

    Entries of a signed map have no `max`: it is 0 where a cell is visible.
    """

    mass: Tensor
    """Summed over the cell's keys and averaged over its queries, (rows, cols)."""
    max: Tensor
    """The greatest weight in the cell, (rows, cols)."""


def level_count(T: int, S: int) -> int:
    """Return the number of levels of a map (T, S): in the last one a single tile holds the whole map."""
    # 8 is log2 of SIDE; max(…, 1) since a map may be empty.
    return max(0, (max(T, S, 1) - 1).bit_length() - 8) + 1


def tile_counts(T: int, S: int, z: int) -> tuple[int, int]:
    """Return the numbers of rows and columns of tiles at level z of a map (T, S)."""
    span = SIDE << z
    return -(-T // span), -(-S // span)


class TilePyramid:
    """The tiles of one head's map at all levels.

    Arguments:
        m: the map, (1, 1, T, S).
        cache: where computed tiles are kept; several pyramids may share it.
        name: distinguishes this map's tiles from others in the cache.
        rows, cols: the edges of the units on both axes, if they are not tokens.
    """

    def __init__(
        self,
        m: ShownMap,
        cache: LRUCache[TileCells],
        name: tuple[Hashable, ...] = (),
        *,
        rows: Edges | None = None,
        cols: Edges | None = None,
    ) -> None:
        self.m, self.cache, self.name = m, cache, name
        self.pooled = for_display(m)  # cells of several weights are not told to the last digit
        T, S = m.matrix[2:]
        self.in_units = rows is not None or cols is not None
        self.rows: Edges = range(T + 1) if rows is None else rows
        self.cols: Edges = range(S + 1) if cols is None else cols
        self.T, self.S = len(self.rows) - 1, len(self.cols) - 1

    def tile(self, z: int, i: int, j: int) -> TileCells:
        """Return tile (i, j) of level z; KeyError says which levels and tiles exist."""
        levels = level_count(self.T, self.S)
        if not 0 <= z < levels:
            raise KeyError(f"z: expected a level from 0 to {levels - 1}, got {z}")
        high, wide = tile_counts(self.T, self.S, z)
        if not (0 <= i < high and 0 <= j < wide):
            raise KeyError(f"tile: expected one of {high} × {wide} at level {z}, got ({i}, {j})")
        return self._cached(z, i, j)

    def _cached(self, z: int, i: int, j: int) -> TileCells:
        return self.cache.get((*self.name, z, i, j), lambda: self._computed(z, i, j))

    def _computed(self, z: int, i: int, j: int) -> TileCells:
        below = self._places_below(z, i, j)
        is_known = bool(z) and all((*self.name, *place) in self.cache for line in below for place in line)
        if is_known or (z > FINE and not self._is_kept(z)):
            return self._assembled(z, i, below)
        T, S = self.T, self.S
        span = SIDE << z
        rows, keys = range(i * span, min(T, (i + 1) * span)), range(j * span, min(S, (j + 1) * span))
        if self.in_units:
            return pool_units(
                self.pooled, _cell_edges(self.rows, rows, 1 << z), _cell_edges(self.cols, keys, 1 << z)
            )
        # Level 0 shows single weights, which the page also writes out as numbers.
        return pool_cells(self.pooled if z else self.m, rows, keys, 1 << z)

    def _is_kept(self, z: int) -> bool:
        """Whether the cells of a level follow from the overview that is kept with the map."""
        kept = self.m.kept if isinstance(self.m, AttentionMap) and not self.in_units else None
        return kept is not None and kept.size <= 1 << z

    def _places_below(self, z: int, i: int, j: int) -> list[list[tuple[int, int, int]]]:
        """Return the places of the tiles of the level below that a tile covers, up to two by two."""
        if not z:
            return []
        high, wide = tile_counts(self.T, self.S, z - 1)
        return [
            [(z - 1, y, x) for x in (2 * j, 2 * j + 1) if x < wide] for y in (2 * i, 2 * i + 1) if y < high
        ]

    def _assembled(self, z: int, i: int, below: list[list[tuple[int, int, int]]]) -> TileCells:
        """Assemble a tile from those of the level below, two by two cells at a time."""
        children = [[self._cached(*place) for place in line] for line in below]
        mass = torch.cat([torch.cat([child.mass for child in line], 1) for line in children])
        peak = torch.cat([torch.cat([child.max for child in line], 1) for line in children])
        counts = self._queries_per_row(z - 1, 2 * i * SIDE, len(mass))
        # ceil_mode: the last cell of an axis may be made of a single one.
        sums = partial(avg_pool2d, kernel_size=2, ceil_mode=True, divisor_override=1)
        mass = sums((mass * counts)[None])[0] / sums(counts[None])[0]
        return TileCells(mass, max_pool2d(peak[None], 2, ceil_mode=True)[0])

    def _queries_per_row(self, z: int, first: int, count: int) -> Tensor:
        """Return the number of queries in each of `count` rows of cells from row `first` on, (count, 1)."""
        edges = [self.rows[min(self.T, (first + y) << z)] for y in range(count + 1)]
        return torch.tensor(edges, device="cpu").diff().float()[:, None]


def attention_of(m: ShownMap) -> MapData | LinearAttentionMap:
    """Return the map itself, or the one whose weights a weighted map multiplies."""
    return m.attention if isinstance(m, WeightedMap) else m


def pool_cells(m: ShownMap, rows: range, keys: range, size: int) -> TileCells:
    """Pool a region of a map (1, 1, T, S) into cells of `size` queries by `size` keys."""
    shape = (-(-len(rows) // size), -(-len(keys) // size))
    attention = attention_of(m)
    mass, peak = torch.zeros(shape, device="cpu"), torch.full(shape, -1.0, device="cpu")
    for row_span in _even_spans(rows, size):
        for key_span in _even_spans(keys, size):
            if not bool(_visible_blocks(attention, [row_span], [key_span])[0]):
                continue
            top, left = (row_span.start - rows.start) // size, (key_span.start - keys.start) // size
            high, wide = (-(-(span.stop - span.start) // size) for span in (row_span, key_span))
            here = (slice(top, top + high), slice(left, left + wide))
            if size == 1:
                mass[here] = peak[here] = m.tile(row_span, key_span).reshape(high, wide).float().cpu()
                continue
            pooled = m.pool(high, wide, _reduction(m), region=(row_span, key_span))
            pair = (pooled, pooled) if isinstance(pooled, Tensor) else pooled
            mass[here], peak[here] = (x.reshape(high, wide).float().cpu() for x in pair)
    if not isinstance(m, AttentionMap):
        peak = torch.zeros(shape, device="cpu")
    edges = ([*axis[::size], axis.stop] for axis in (rows, keys))
    return TileCells(mass, peak.where(visible_units(attention, *edges), -1.0))


def _reduction(m: ShownMap) -> Literal["mass", "both"]:
    """Return what to pool: the greatest entries of a linear layer take long, and are not shown."""
    return "mass" if isinstance(m, LinearAttentionMap) else "both"


def pool_units(m: ShownMap, rows: Edges, cols: Edges) -> TileCells:
    """Pool a map (1, 1, T, S) into the cells between edges of its queries and its keys."""
    shape = (len(rows) - 1, len(cols) - 1)
    pooled = m.pool(rows, cols, _reduction(m))
    pair = (pooled, pooled) if isinstance(pooled, Tensor) else pooled
    mass, peak = (x.reshape(shape).float().cpu() for x in pair)
    if not isinstance(m, AttentionMap):
        peak = torch.zeros(shape, device="cpu")
    return TileCells(mass, peak.where(visible_units(attention_of(m), rows, cols), -1.0))


def _cell_edges(edges: Edges, units: range, size: int) -> list[int]:
    """Return the edges of cells of `size` units each; the last may hold fewer."""
    return [*(edges[unit] for unit in units[::size]), edges[units.stop]]


def visible_units(m: MapData | LinearAttentionMap, rows: Edges, cols: Edges) -> Tensor:
    """Return which cells between edges hold a key visible to one of their queries, (rows, cols)."""
    visible = torch.zeros(len(rows) - 1, len(cols) - 1, dtype=torch.bool, device="cpu")
    down, across = list(_chunks(rows)), list(_chunks(cols))
    row_spans = [slice(rows[units.start], rows[units.stop]) for units in down]
    key_spans = [slice(cols[units.start], cols[units.stop]) for units in across]
    some, every = _visible_blocks(m, row_spans, key_spans)
    for y, x in some.nonzero().tolist():
        here = (down[y], across[x])
        # The mask is evaluated only where its bounds do not decide the whole block.
        if bool(every[y, x]):
            visible[here] = True
            continue
        allowed = m.mask.tile(row_spans[y], key_spans[x], m.matrix, device=m.device)
        allowed = allowed.reshape(-1, *allowed.shape[-2:])[0].float().cpu()
        visible[here] = _membership(rows, down[y]) @ allowed @ _membership(cols, across[x]).mT > 0
    return visible


def _chunks(edges: Edges) -> Iterator[slice]:
    """Split units into runs of at most `STEP` tokens, or of one unit that has more."""
    first = 0
    for unit in range(1, len(edges)):
        if unit == len(edges) - 1 or edges[unit + 1] - edges[first] > STEP:
            yield slice(first, unit)
            first = unit


def _membership(edges: Edges, units: slice) -> Tensor:
    """Return which of the tokens of some units each unit holds, as 0 and 1, (units, tokens)."""
    sizes = torch.tensor(
        [last - first for first, last in pairwise(edges[units.start : units.stop + 1])], device="cpu"
    )
    numbers = torch.arange(len(sizes), device="cpu")
    return numbers.repeat_interleave(sizes).eq(numbers[:, None]).float()


def _even_spans(span: range, size: int) -> list[slice]:
    """Split a range in two: the part that whole cells cover, and the smaller cell at the end, if any."""
    middle = span.start + len(span) // size * size
    return [slice(a, b) for a, b in ((span.start, middle), (middle, span.stop)) if a < b]


def _visible_blocks(
    m: MapData | LinearAttentionMap, rows: Sequence[slice], keys: Sequence[slice]
) -> tuple[Tensor, Tensor]:
    """Return in which blocks a key may be visible, and in which all are, (rows, keys) on the CPU each."""
    _, _, T, S = m.matrix
    q_first, q_last = (
        torch.tensor(x, device=m.device)[:, None] + S - T
        for x in ([span.start for span in rows], [span.stop - 1 for span in rows])
    )
    k_first, k_last = (
        torch.tensor(x, device=m.device)[None]
        for x in ([span.start for span in keys], [span.stop - 1 for span in keys])
    )
    table = (len(rows), len(keys))
    some, every = (
        x.expand(*x.shape[:-2], *table).reshape(-1, *table)  # some masks differ between texts and heads
        for x in m.mask.block_bounds(Blocks(q_first, q_last, k_first, k_last, T, S))
    )
    return some.any(0).cpu(), every.all(0).cpu()
