"""Counts the visible cells of a mask, of any length, by whole blocks wherever the mask can tell of one."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from regard.attention.masks.base import Mask
from regard.attention.masks.grid import block_table, grid

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
    B, H, T, S = shape
    block = max(16, min(BLOCK, int((ENTRIES / (B * H)) ** 0.5)))
    blocks = block_table(T, S, block, block)
    (some, every), (limit_some, limit_every) = mask.block_bounds(blocks), limit.block_bounds(blocks)
    some, every = (_joined(x, B) for x in (some & ~limit_every, some & every & ~limit_some))  # (B, R, C)
    count, first = 0, None
    weight = torch.ones(B, T, dtype=torch.bool, device="cpu") if rows is None else rows.cpu()
    for r, c in some.any(0).nonzero().tolist():
        queries, keys = range(r * block, min((r + 1) * block, T)), range(c * block, min((c + 1) * block, S))
        own = weight[:, queries.start : queries.stop]
        if bool((every[:, r, c] == some[:, r, c]).all()):
            shown = (every[:, r, c, None] & own)[..., None].expand(B, len(queries), len(keys))
        else:
            at = grid(queries, keys, shape)
            tile = _joined(mask.allowed(at) & ~limit.allowed(at), B)
            shown = tile.expand(B, len(queries), len(keys)) & own[..., None]
        found = int(shown.sum())
        count += found
        if found:
            text, query, key = shown.nonzero()[0].tolist()
            cell = Cell(text, query + queries.start, key + keys.start)
            first = cell if first is None else min(first, cell)
    return Cells(count, first)


def _joined(x: Tensor, B: int) -> Tensor:
    """Return what holds for any head, (B, rows, columns), of a tensor that broadcasts to (B, H, …)."""
    x = x.cpu()
    x = x.reshape((1,) * (4 - x.ndim) + x.shape).any(1)
    return x.expand(B, *x.shape[1:])
