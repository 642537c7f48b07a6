"""The cells of a figure: the weights of a map, pooled where it is long, and their colours."""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple, cast

import torch
from torch import Tensor

from regard.maps import AttentionMap, DifferenceMap, SignedMap
from regard.maps.scale_end import overview_edges, scale_end
from regard.show.data.map_view.tiles import attention_of, visible_units
from regard.stages.figures.picture import colour_scale

Reduce = Literal["mass", "max"]
Drawable = AttentionMap | SignedMap | Tensor


class FigureCells(NamedTuple):
    """The cells of a figure, and the first query and the first key of each."""

    signed: bool  # whether the colours diverge from 0
    values: Tensor  # (rows, cols)
    hidden: Tensor  # (rows, cols), True where no key is visible
    rows: list[int]
    cols: list[int]

    @property
    def visible(self) -> Tensor:
        """The values that are not hidden, (n,)."""
        return self.values[~self.hidden]


def pool_cells(m: Drawable, reduce: Reduce, most: int) -> FigureCells:
    """Pool a map (T, S) to at most `most` cells along each axis."""
    T, S = m.shape
    if isinstance(m, Tensor):
        values = m.detach().float().cpu()
        hidden = torch.zeros_like(values, dtype=torch.bool)
        return FigureCells(bool((values < 0).any()), values, hidden, list(range(T)), list(range(S)))
    rows, cols = ([i * n // min(n, most) for i in range(min(n, most) + 1)] for n in (T, S))
    values = cast(Tensor, m.pool(rows, cols, reduce)).float().cpu()
    signed = isinstance(m, DifferenceMap) or bool((values < 0).any())
    return FigureCells(signed, values, _hidden_cells(m, rows, cols), rows[:-1], cols[:-1])


def _hidden_cells(m: Any, rows: list[int], cols: list[int]) -> Tensor:
    """Return which cells of a map (T, S), pooled between these edges, hold no visible key."""
    if isinstance(m, DifferenceMap):
        return _hidden_cells(m.left, rows, cols) & _hidden_cells(m.right, rows, cols)
    return ~visible_units(attention_of(m), rows, cols)


def overview_values(m: Drawable, cells: FigureCells, reduce: Reduce) -> Tensor:
    """Return the visible values by which the colours of a map (T, S) are scaled, (n,).

    They are those of `overview_edges`, as on the page.
    """
    if isinstance(m, Tensor):
        return cells.visible
    rows, cols = overview_edges(m.shape)
    values = cast(Tensor, m.pool(rows, cols, reduce)).float().cpu()
    return values[~_hidden_cells(m, rows, cols)]


def cell_scale(cells: FigureCells, overview: Tensor, log: bool, bounded: bool) -> Any:
    """Return the Matplotlib norm that maps cells to colours, which end where those of `overview` do.

    `bounded` numbers are never above 1.
    """
    # or 1.0: a map of zeros has no end, and a norm from 0 to 0 would divide by 0.
    top = scale_end(overview, 1.0 if bounded else math.inf) or 1.0
    # A logarithmic scale has no 0: it begins at the power of ten below uniform attention.
    floor = 10.0 ** math.floor(math.log10(0.3 / cells.values.shape[1]))  # below uniform attention
    bottom = min(floor, top / 10) if bounded else top / 1000
    return colour_scale(top, log, cells.signed, bottom=bottom)
