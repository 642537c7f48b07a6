"""`KeptOverview`: an overview that was computed with the attention itself, and answers coarser ones.

A capture with `overviews=True` keeps one with each map. Its cells are squares of tokens, so that every
overview whose spans are made of whole cells follows from it without computing a weight.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from regard.attention.backends.runs import join_runs
from regard.maps.spans import number_members

MIN_QUERIES = 4096  # of a map: a smaller one is pooled in no time when its overview is asked for
MIN_SIZE = 128  # of a cell: the largest block of keys of the attention kernels
SIDE = 256  # the number of rows and columns above which cells are larger; the page shows as many at once


class KeptOverview(NamedTuple):
    """The mean row mass and the largest weight of cells of `size` queries by `size` keys.

    Cells at the far edges may hold fewer.
    """

    size: int
    mass: Tensor  # (B, H, rows, cols)
    max: Tensor  # (B, H, rows, cols)

    @property
    def nbytes(self) -> int:
        """Bytes of both overviews."""
        return self.mass.nbytes + self.max.nbytes

    def select(self, batch: slice, heads: slice | list[int]) -> KeptOverview:
        """Select sequences and heads."""
        return KeptOverview(self.size, self.mass[batch][:, heads], self.max[batch][:, heads])

    def to(self, device: torch.device) -> KeptOverview:
        """The same on another device."""
        return KeptOverview(self.size, self.mass.to(device), self.max.to(device))

    def pool(self, rows: Tensor, cols: Tensor, T: int, S: int) -> tuple[Tensor, Tensor] | None:
        """Mass and maximum (B, H, rows, cols) for spans between bounds (2, rows) and (2, cols).

        None if a span is not made of whole cells. The map has T queries and S keys.
        """
        row_spans, col_spans = self._spans(rows, T), self._spans(cols, S)
        if row_spans is None or col_spans is None:
            return None
        # The number of queries in each row of cells counts them as many times as their mean is worth.
        edges = torch.arange(0, T + self.size, self.size, device="cpu").clamp(max=T)
        queries = edges.diff()[: self.mass.shape[2]].to(self.mass)
        counts = (rows[1] - rows[0]).to(self.mass)
        mass = _join(_join(self.mass * queries[:, None], -2, *row_spans), -1, *col_spans) / counts[:, None]
        peak = _join(_join(self.max, -2, *row_spans, largest=True), -1, *col_spans, largest=True)
        return mass, peak

    def _spans(self, bounds: Tensor, length: int) -> tuple[Tensor, Tensor, int] | None:
        """The cells in the spans between bounds (2, n), in order, the span of each, and n; else None."""
        starts, stops = bounds.cpu()
        if bool((starts % self.size != 0).any() | ((stops % self.size != 0) & (stops != length)).any()):
            return None
        first = starts // self.size
        counts = (stops + self.size - 1) // self.size - first
        spans, number = number_members(counts)
        return first[spans] + number, spans, len(starts)


def cell_size(T: int, S: int) -> int:
    """The size of the cells of T queries and S keys: a power of two that gives at most 256 × 256 of them."""
    return max(MIN_SIZE, 1 << (-(-max(T, S, 1) // SIDE) - 1).bit_length())


def _join(x: Tensor, dim: int, cells: Tensor, spans: Tensor, count: int, largest: bool = False) -> Tensor:
    """Sum the cells of each of `count` spans along an axis of x, or take the largest of them."""
    # As many cells as spans, in order: nothing is joined.
    if len(cells) == count == x.shape[dim]:
        return x
    chosen = x.movedim(dim, 0)[cells.to(x.device)]
    joined = join_runs(chosen, spans.to(x.device), count, "amax" if largest else "sum")
    return joined.movedim(0, dim)
