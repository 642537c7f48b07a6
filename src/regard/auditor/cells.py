"""Counts the cells that one mask shows and another hides, where some block may have any."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from regard.attention.backends.tiles import visits_between
from regard.attention.masks.base import Mask
from regard.attention.masks.grid import Grid
from regard.attention.masks.interval import Interval
from regard.attention.masks.views import MaskOnly, MaskView

BLOCK = 512
ENTRIES = 1 << 22  # of tiles that are evaluated at a time


class Cell(NamedTuple):
    """One cell of a batch of attention matrices."""

    text: int
    query: int
    key: int


class Cells(NamedTuple):
    """Cells that a mask shows: how many, and the first of them."""

    number: int
    first: Cell | None


def cells_beyond(
    mask: Mask, limit: Mask, shape: tuple[int, int, int, int], rows: Tensor | None = None
) -> Cells:
    """Count the cells (text, query, key) that a mask shows to some head and `limit` hides; find the first.

    Arguments:
        mask: a mask of attention of this shape; what it adds to the scores does not count.
        limit: another one.
        shape: (B, H, T, S).
        rows: boolean (B, T), the queries that count; None for all of them.
    """
    B, _, T, S = shape
    # A tile of all texts has B · side² entries.
    side = max(16, min(BLOCK, int((ENTRIES / B) ** 0.5)))
    counted = torch.ones(B, T, dtype=torch.bool, device="cpu") if rows is None else rows.cpu()
    beyond = mask & ~MaskOnly(limit)
    number = 0
    first: Cell | None = None
    for queries, visited in visits_between(beyond, [*range(0, T, side), T], [*range(0, S, side), S]):
        for keys in (column.keys for column in visited):
            spans = range(queries.start, queries.stop), range(keys.start, keys.stop)
            shown = beyond.tile(*spans, shape)
            shown = shown if shown.ndim == 2 else shown.any(1)  # of any head
            shown = shown.expand(B, *map(len, spans)) & counted[:, queries, None]
            number += int(shown.sum())
            if bool(shown.any()):
                text, query, key = shown.nonzero()[0].tolist()
                cell = Cell(text, query + queries.start, key + keys.start)
                first = cell if first is None else min(first, cell)
    return Cells(number, first)


@dataclasses.dataclass(frozen=True, repr=False, eq=False)
class PlacedRows(MaskView):
    """A mask of some queries, as one of all T queries: query `rows[i]` sees what query i sees inside.

    What the other queries see is not known: they see what the next of these does.
    """

    is_causal = False  # in these numbers

    rows: Tensor

    def window_size(self) -> int | None:
        return None

    def _local(self, numbers: Tensor) -> Tensor:
        rows = self.rows.to(numbers.device)
        # searchsorted warns of numbers that are not contiguous.
        return torch.searchsorted(rows, numbers.contiguous()).clamp(max=len(rows) - 1)

    def _move(self, at: Grid) -> Grid:
        numbers: Any = at.q.flatten() - (at.S - at.T)
        local: Any = numbers.each(self._local) if isinstance(numbers, Interval) else self._local(numbers)
        q = (local + at.S - len(self.rows))[None, None, :, None]
        return at._replace(q=q, rows=local, T=len(self.rows))

    def shape_error(self, B: int | None, H: int | None, T: int, S: int) -> str | None:
        return self.inner.shape_error(B, H, len(self.rows), S)

    def __repr__(self) -> str:
        return f"{self.inner}, of a rank's rows"


def on_cpu(mask: Mask) -> Mask:
    """Return a mask whose tensors are on the CPU, where a cell does not wait for a GPU."""
    changes: dict[str, Any] = {}
    for name, value in vars(mask).items():
        if isinstance(value, Tensor) and value.device.type != "cpu":
            changes[name] = value.detach().cpu()
        elif isinstance(value, Mask) and (moved := on_cpu(value)) is not value:
            changes[name] = moved
    return dataclasses.replace(cast(Any, mask), **changes) if changes else mask


def are_equal(mask: Mask, other: Mask) -> bool:
    """Return whether two masks are of the same classes and hold the same numbers."""
    if mask is other:
        return True
    if type(mask) is not type(other) or vars(mask).keys() != vars(other).keys():
        return False
    for name, a in vars(mask).items():
        b = vars(other)[name]
        if isinstance(a, Mask) and isinstance(b, Mask):
            same = are_equal(a, b)
        elif isinstance(a, Tensor) and isinstance(b, Tensor):
            same = a.shape == b.shape and a.dtype == b.dtype and torch.equal(a, b)
        else:
            # Two functions are the same mask only if they are one object.
            same = a is b or (isinstance(a, int | float) and a == b)
        if not same:
            return False
    return True
