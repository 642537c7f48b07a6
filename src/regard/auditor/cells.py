"""Counts the visible cells of a mask, of any length, by whole blocks wherever the mask can tell of one."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.nn.functional import pad

from regard.attention.masks.base import Mask
from regard.attention.masks.grid import Grid, block_table, grid
from regard.attention.masks.interval import Interval
from regard.attention.masks.views import MaskView

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


NO_CELLS = Cells(0, None)


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
    # A tile of all texts has B · block² entries.
    block = max(16, min(BLOCK, int((ENTRIES / B) ** 0.5)))
    blocks = block_table(T, S, block, block)
    (some, every), (limit_some, limit_every) = mask.block_bounds(blocks), limit.block_bounds(blocks)
    bounds = (_joined(x, B) for x in (some & ~limit_every, some & every & ~limit_some))
    # A mask that cannot tell of blocks, as of a tensor, answers once for a whole row of them.
    some, every = (x.expand(B, -(-T // block), -(-S // block)) for x in bounds)  # (B, R, C)
    counted = torch.ones(B, T, dtype=torch.bool, device="cpu") if rows is None else rows.cpu()
    number, first = _whole_blocks(every, counted, block, S)
    for r, c in (some & ~every).any(0).nonzero().tolist():
        queries, keys = range(r * block, min((r + 1) * block, T)), range(c * block, min((c + 1) * block, S))
        at = grid(queries, keys, shape)
        shown = _joined(mask.allowed(at) & ~limit.allowed(at), B).expand(B, len(queries), len(keys))
        shown = shown & (counted[:, queries.start : queries.stop] & ~every[:, r, c, None])[..., None]
        found = int(shown.sum())
        number += found
        if found:
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


def _whole_blocks(every: Tensor, counted: Tensor, block: int, S: int) -> Cells:
    """Count the cells of blocks (B, R, C) that are shown as a whole, in the rows (B, T) that count."""
    B, R, C = every.shape
    T = counted.shape[1]
    heights = pad(counted.int(), (0, R * block - T)).view(B, R, block).sum(-1)  # (B, R)
    widths = (S - torch.arange(C, device="cpu") * block).clamp(max=block)
    number = int((every * heights[..., None] * widths).sum())
    if not number:
        return NO_CELLS
    text, r, c = (every & (heights > 0)[..., None]).nonzero()[0].tolist()
    query = r * block + int(counted[text, r * block : (r + 1) * block].int().argmax())
    return Cells(number, Cell(text, query, c * block))


def _joined(x: Tensor, B: int) -> Tensor:
    """Return what holds for any head, (B, rows, columns), of a tensor that broadcasts to (B, H, …)."""
    x = x.cpu()
    x = x.reshape((1,) * (4 - x.ndim) + x.shape).any(1)
    return x.expand(B, *x.shape[1:])
