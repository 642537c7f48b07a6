"""Any yes-or-no mask as lists of the blocks a kernel has to visit, each full or partial.

For every block of queries: the key blocks in which anything is allowed, those allowed whole first, then the
partial ones with the number of a stored tile of bits. Equal tiles are stored once. Nothing of the size T×S
is built for a rule that is empty or full over most of the matrix: the rule is asked about whole blocks first,
and entry by entry only where it cannot tell, a bounded piece at a time.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from regard.attention.masks.base import Mask
from regard.attention.masks.grid import Blocks, grid

PIECE = 1 << 22
"""How many entries of the matrix are looked at in one go."""


class BlockLists(NamedTuple):
    """List n holds the blocks block[first[n]:first[n + 1]]; from split[n] on they are partial."""

    first: Tensor  # (lists + 1,) int32
    split: Tensor  # (lists,) int32
    block: Tensor  # (entries,) int32
    tile: Tensor  # (entries,) int32: which of the stored tiles; of no meaning before split
    tiles: Tensor  # (tiles, rows of a block, cols of a block / 8) uint8, key 8·i + j in bit j of byte i
    batch_step: int  # the list of block r for batch b and head h is b · batch_step + h · head_step + r
    head_step: int


class Survey(NamedTuple):
    """Every block in which something is allowed, in no order."""

    head: Tensor  # (entries,) int64, b · heads + h counted over those that differ
    row: Tensor  # (entries,)
    col: Tensor  # (entries,)
    tile: Tensor  # (entries,), −1: everything in the block is allowed
    tiles: Tensor  # (tiles, rows of a block, cols of a block / 8) uint8
    sizes: tuple[int, int, int, int]  # batches and heads that differ, blocks of rows and of cols

    def by_row(self) -> BlockLists:
        """For each block of queries, its blocks of keys."""
        return self._lists(self.row, self.col, self.sizes[2], self.sizes[3])

    def by_col(self) -> BlockLists:
        """For each block of keys, its blocks of queries."""
        return self._lists(self.col, self.row, self.sizes[3], self.sizes[2])

    def _lists(self, owner: Tensor, member: Tensor, owners: int, members: int) -> BlockLists:
        batches, heads = self.sizes[:2]
        place = (self.head * owners + owner) * 2 + (self.tile >= 0)
        place, order = (place * members + member).sort()
        edges = torch.arange(2 * batches * heads * owners + 1, device=place.device) * members
        edges = torch.searchsorted(place, edges).int()
        return BlockLists(
            edges[::2].contiguous(),
            edges[1::2].contiguous(),
            member[order].int(),
            self.tile[order].int(),
            self.tiles,
            heads * owners if batches > 1 else 0,
            owners if heads > 1 else 0,
        )


def blocks_of(length: int, size: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """0, 1, 2, … in blocks (blocks, size), the last number filling what is left over; and which are real."""
    index = torch.arange(-(-length // size) * size, device=device).view(-1, size)
    return index.clamp(max=length - 1), index < length


def survey(mask: Mask, shape: tuple[int, int, int, int], rows: Tensor, cols: Tensor, real: Tensor) -> Survey:
    """What a mask allows in blocks of queries `rows` (R, m) and of keys `cols` (C, n), each in rising order.

    Keys that are not `real` (C, n) only fill their block: nobody may look at them.
    """
    _, _, T, S = shape
    device = rows.device
    R, C = len(rows), len(cols)
    batches, heads = mask.allowed(grid(range(1), range(1), shape, device)).shape[:2]
    q_first, q_last = rows[:, :1] + S - T, rows[:, -1:] + S - T  # (R, 1)
    k_first, k_last = cols[:, :1].mT, cols[:, -1:].mT  # (1, C)
    whole = real.all(-1)  # (C,)

    found: list[Tensor] = []  # (4, entries) each: head, row, col, tile
    tiles: list[Tensor] = []
    strip = max(1, PIECE // (batches * heads * C))
    for r in range(0, R, strip):
        blocks = Blocks(q_first[r : r + strip], q_last[r : r + strip], k_first, k_last, T, S)
        some, every = mask.block_bounds(blocks)
        full = (batches, heads, len(blocks.q_first), C)
        some, every = some.expand(full), (every & whole).expand(full)
        found.append(_entries((some & every).nonzero(), r, heads))
        unsure = some & ~every
        for part in _pieces(unsure.flatten(0, 1).any(0), batches * heads * rows.shape[1] * cols.shape[1]):
            entries, bits = _look(mask, shape, unsure, rows[r : r + strip], cols, real, part, heads)
            entries[1] += r
            entries[3] += (entries[3] >= 0) * sum(len(t) for t in tiles)
            found.append(entries)
            tiles.append(bits)
    head, row, col, tile = torch.cat(found, 1)
    store = torch.cat(
        [torch.zeros(0, rows.shape[1], cols.shape[1] // 8, dtype=torch.uint8, device=device), *tiles]
    )
    store, number = _distinct(store)
    tile = torch.where(tile < 0, tile, number[tile]) if len(number) else tile
    return Survey(head, row, col, tile, store, (batches, heads, R, C))


def _pieces(unsure: Tensor, entries: int) -> list[tuple[slice, Tensor]]:
    """Rectangles of blocks, some rows by the columns they need, that together hold every block to look at."""
    todo, pieces = [(slice(0, len(unsure)), unsure.any(0).nonzero()[:, 0])], []
    while todo:
        rows, cols = todo.pop()
        height = rows.stop - rows.start
        if len(cols) == 0:
            continue
        if height * len(cols) * entries <= PIECE or height * len(cols) == 1:
            pieces.append((rows, cols))
        elif height > 1:
            middle = rows.start + height // 2
            for half in (slice(rows.start, middle), slice(middle, rows.stop)):
                todo.append((half, unsure[half].any(0).nonzero()[:, 0]))
        else:
            todo += [(rows, half) for half in cols.chunk(2)]
    return pieces


def _look(
    mask: Mask,
    shape: tuple[int, int, int, int],
    unsure: Tensor,
    rows: Tensor,
    cols: Tensor,
    real: Tensor,
    part: tuple[slice, Tensor],
    heads: int,
) -> tuple[Tensor, Tensor]:
    """Ask a rule about each entry of some blocks: those that allow anything, and the tiles of the partial."""
    at_rows, at_cols = part
    rows, cols, real = rows[at_rows], cols[at_cols], real[at_cols]
    at = grid(rows.flatten(), cols.flatten(), shape, rows.device)
    allowed = mask.allowed(at).expand(*unsure.shape[:2], rows.numel(), cols.numel())
    allowed = allowed.reshape(*unsure.shape[:2], *rows.shape, *cols.shape)
    allowed = allowed.transpose(3, 4)  # (B, H, R, C, m, n)
    allowed = allowed & real[:, None]
    unsure = unsure[:, :, at_rows][..., at_cols]  # (B, H, R, C)
    full = unsure & allowed.flatten(-2).all(-1)
    partial = unsure & ~full & allowed.flatten(-2).any(-1)
    bits, number = _distinct(_packed(allowed[partial]))
    whole, broken = full.nonzero(), partial.nonzero()
    entries = torch.cat([_entries(whole, 0, heads), _entries(broken, 0, heads, number)], 1)
    entries[2] = at_cols[entries[2]]
    entries[1] += at_rows.start
    return entries, bits


def _entries(index: Tensor, first_row: int, heads: int, tile: Tensor | None = None) -> Tensor:
    b, h, r, c = index.unbind(1)
    return torch.stack([b * heads + h, r + first_row, c, torch.full_like(c, -1) if tile is None else tile])


def _packed(tiles: Tensor) -> Tensor:
    """Eight booleans to a byte along the keys."""
    worth = 2 ** torch.arange(8, dtype=torch.uint8, device=tiles.device)
    tiles = tiles.view(*tiles.shape[:-1], -1, 8)
    return (tiles * worth).sum(-1, dtype=torch.uint8)


def _distinct(tiles: Tensor) -> tuple[Tensor, Tensor]:
    """The different tiles, and for each tile which of them it is."""
    if len(tiles) == 0:
        return tiles, torch.zeros(0, dtype=torch.int64, device=tiles.device)
    words = tiles.flatten(1).view(torch.int64)  # (tiles, bytes / 8)
    mix = torch.randint(-(1 << 62), 1 << 62, words.shape[1:], generator=torch.Generator().manual_seed(0))
    _, number = torch.unique((words * mix.to(tiles.device)).sum(-1), return_inverse=True)
    first = torch.full((int(number.max()) + 1,), len(tiles), device=tiles.device)
    first.scatter_reduce_(0, number, torch.arange(len(tiles), device=tiles.device), "amin")
    kept = tiles[first]
    if not torch.equal(kept[number], tiles):  # two different tiles with one sum: keep them all
        return tiles, torch.arange(len(tiles), device=tiles.device)
    return kept, number
