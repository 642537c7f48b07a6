"""Lists of the blocks that a kernel has to visit under any mask without a bias, each block full or partial.

For every block of queries: the key blocks in which anything is visible, the full ones first, then the partial
ones with the number of a stored tile of bits. Equal tiles are stored once. Nothing of the size T×S is built
for a mask that is empty or full over most of the matrix: the mask is asked about whole blocks first, and
entry by entry only where it cannot tell, a bounded number of entries at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from regard.attention.masks.base import Mask
from regard.attention.masks.grid import Blocks, grid

MAX_ENTRIES = 1 << 22
"""How many entries of the matrix are evaluated at a time on a CPU; on a GPU `GPU_SHARE` times as many."""
GPU_SHARE = 8
MAX_TILE_ENTRIES = 1 << 25
"""How many entries of stored tiles are looked at for runs of visible keys, and for keys nobody sees."""


class BlockLists(NamedTuple):
    """List n holds the blocks block[first[n]:first[n + 1]]; from split[n] on they are partial."""

    first: Tensor  # (lists + 1,) int32
    split: Tensor  # (lists,) int32
    block: Tensor  # (entries,) int32
    tile: Tensor  # (entries,) int32: the stored tile of a partial block; undefined before split
    # (tiles, rows of a block, 2) int32: the first visible key of each row and the one after the last, if the
    # keys that a row sees lie side by side in every tile; otherwise bits, (tiles, rows of a block, cols of a
    # block / 64) int64 with key 64·i + j in bit j of word i, or uint8 likewise if the words are not whole;
    # none of them where the kernel itself finds what is visible
    tiles: Tensor
    batch_step: int  # the list of block r for batch b and head h is b · batch_step + h · head_step + r
    head_step: int


@dataclass(frozen=True, eq=False)
class VisibleBlocks:
    """Every block in which something is visible, in no order. Its lists are made once."""

    head: Tensor  # (entries,) int64: b · heads + h, over the batches and heads that differ
    row: Tensor  # (entries,)
    col: Tensor  # (entries,)
    tile: Tensor  # (entries,), −1 where everything in the block is visible
    tiles: Tensor  # (tiles, rows of a block, cols of a block / 8) uint8
    exists: Tensor  # (column blocks, cols of a block) False for keys that only fill their block
    sizes: tuple[int, int, int, int]  # batches and heads that differ, row blocks, column blocks

    @property
    def nbytes(self) -> int:
        """The memory that the blocks and their tiles take."""
        return sum(x.nbytes for x in (self.head, self.row, self.col, self.tile, self.tiles))

    @cached_property
    def hides_keys(self) -> bool:
        """Whether a key may be hidden from every query of a head; True where finding out takes too long."""
        partial = self.tile >= 0
        own, C, size = self.sizes[0] * self.sizes[1], *self.exists.shape
        if max(self.tiles.numel() * 8, int(partial.sum()) * size, own * C * size) > MAX_TILE_ENTRIES:
            return True
        column = self.head * C + self.col
        shown = (~self.exists).repeat(own, 1).int()  # (columns, cols of a block)
        shown.index_add_(0, column[partial], unpack_bits(self.tiles).any(1)[self.tile[partial]].int())
        shown[column[~partial]] = 1
        return not bool(shown.all())

    @cached_property
    def _spans(self) -> Tensor | None:
        return _find_spans(self.tiles)

    @cached_property
    def by_row(self) -> BlockLists:
        """The key blocks of each query block."""
        return self._lists(self.row, self.col, self.sizes[2], self.sizes[3])

    @cached_property
    def by_col(self) -> BlockLists:
        """The query blocks of each key block."""
        return self._lists(self.col, self.row, self.sizes[3], self.sizes[2])

    def _lists(self, owner: Tensor, member: Tensor, owners: int, members: int) -> BlockLists:
        batches, heads = self.sizes[:2]
        place = (self.head * owners + owner) * 2 + (self.tile >= 0)
        place, order = (place * members + member).sort()
        edges = torch.arange(2 * batches * heads * owners + 1, device=place.device) * members
        edges = torch.searchsorted(place, edges).int()
        # Words of eight bytes, if each row has whole ones.
        bits = self.tiles if self.tiles.shape[-1] % 8 else self.tiles.view(torch.int64)
        return BlockLists(
            edges[::2].contiguous(),
            edges[1::2].contiguous(),
            member[order].int(),
            self.tile[order].int(),
            bits if self._spans is None else self._spans,
            heads * owners if batches > 1 else 0,
            owners if heads > 1 else 0,
        )


def cut_into_blocks(length: int, size: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """The indices below `length` as blocks (blocks, size), and which of them exist.

    The last index is repeated to fill the last block.
    """
    index = torch.arange(-(-length // size) * size, device=device).view(-1, size)
    return index.clamp(max=length - 1), index < length


def count_different(mask: Mask, shape: tuple[int, int, int, int], device: torch.device) -> tuple[int, int]:
    """How many sequences and heads of attention of `shape` the mask tells apart: all of them, or 1."""
    batches, heads = mask.allowed(grid(range(1), range(1), shape, device)).shape[:2]
    return batches, heads


def find_visible_blocks(
    mask: Mask, shape: tuple[int, int, int, int], rows: Tensor, cols: Tensor, exists: Tensor
) -> VisibleBlocks:
    """The visible blocks of a mask for attention of `shape`.

    `rows` (R, m) and `cols` (C, n) are the query and key indices of each block, in rising order. Keys for
    which `exists` (C, n) is False only fill their block and are invisible.
    """
    _, _, T, S = shape
    device = rows.device
    R, C = len(rows), len(cols)
    batches, heads = count_different(mask, shape, device)
    q_first, q_last = rows[:, :1] + S - T, rows[:, -1:] + S - T  # (R, 1)
    k_first, k_last = cols[:, :1].mT, cols[:, -1:].mT  # (1, C)
    whole = exists.all(-1)  # (C,)

    # Strips of query blocks, so that the table of blocks stays small.
    entries: list[Tensor] = []  # (4, entries) each: head, row, col, tile
    tiles: list[Tensor] = []
    most = MAX_ENTRIES * (GPU_SHARE if rows.is_cuda else 1)
    strip = max(1, most // (batches * heads * C))
    for r in range(0, R, strip):
        blocks = Blocks(q_first[r : r + strip], q_last[r : r + strip], k_first, k_last, T, S)
        some, every = mask.block_bounds(blocks)
        full = (batches, heads, len(blocks.q_first), C)
        some, every = some.expand(full), (every & whole).expand(full)
        entries.append(_entries((some & every).nonzero(), r, heads))
        # Blocks of which the mask cannot tell are evaluated entry by entry.
        unsure = some & ~every
        block_entries = batches * heads * rows.shape[1] * cols.shape[1]
        for rectangle in _rectangles(unsure.flatten(0, 1).any(0), most // block_entries):
            evaluated, bits = _evaluate(
                mask, shape, unsure, rows[r : r + strip], cols, exists, rectangle, heads
            )
            evaluated[1] += r
            evaluated[3] += (evaluated[3] >= 0) * sum(len(t) for t in tiles)
            entries.append(evaluated)
            tiles.append(bits)
    head, row, col, tile = torch.cat(entries, 1)
    store = torch.cat(
        [torch.zeros(0, rows.shape[1], cols.shape[1] // 8, dtype=torch.uint8, device=device), *tiles]
    )
    store, number = _deduplicate(store)
    tile = torch.where(tile < 0, tile, number[tile]) if len(number) else tile
    return VisibleBlocks(head, row, col, tile, store, exists, (batches, heads, R, C))


def find_bounded_blocks(
    mask: Mask, shape: tuple[int, int, int, int], rows: Tensor, cols: Tensor, exists: Tensor
) -> VisibleBlocks:
    """`find_visible_blocks` by what a mask says of whole blocks, for a kernel that needs no bits of it.

    The mask is the same for every sequence and head. A block that need not be full counts as partial.
    """
    _, _, T, S = shape
    q_first, q_last = rows[:, :1] + S - T, rows[:, -1:] + S - T  # (R, 1)
    some, every = mask.block_bounds(Blocks(q_first, q_last, cols[:, :1].mT, cols[:, -1:].mT, T, S))
    table = (1, 1, len(rows), len(cols))
    full = (some & every & exists.all(-1)).expand(table)
    partial = (some.expand(table) & ~full).nonzero()
    entries = [_entries(full.nonzero(), 0, 1), _entries(partial, 0, 1, torch.zeros_like(partial[:, 0]))]
    head, row, col, tile = torch.cat(entries, 1)
    none = torch.zeros(0, rows.shape[1], cols.shape[1] // 8, dtype=torch.uint8, device=rows.device)
    return VisibleBlocks(head, row, col, tile, none, exists, table)


def _rectangles(unsure: Tensor, most: int) -> list[tuple[slice, Tensor]]:
    """Rectangles of blocks (rows, and the columns they need) that together cover every unsure block (R, C).

    A rectangle has at most `most` blocks, but at least one.
    """
    todo, rectangles = [(slice(0, len(unsure)), unsure.any(0).nonzero()[:, 0])], []
    while todo:
        rows, cols = todo.pop()
        height = rows.stop - rows.start
        if len(cols) == 0:
            continue
        if height * len(cols) <= max(most, 1):
            rectangles.append((rows, cols))
        elif height > 1:
            middle = rows.start + height // 2
            for half in (slice(rows.start, middle), slice(middle, rows.stop)):
                todo.append((half, unsure[half].any(0).nonzero()[:, 0]))
        else:
            todo += [(rows, half) for half in cols.chunk(2)]
    return rectangles


def _evaluate(
    mask: Mask,
    shape: tuple[int, int, int, int],
    unsure: Tensor,
    rows: Tensor,
    cols: Tensor,
    exists: Tensor,
    rectangle: tuple[slice, Tensor],
    heads: int,
) -> tuple[Tensor, Tensor]:
    """Evaluate each entry of a rectangle of blocks: the visible blocks, and the tiles of the partial ones."""
    at_rows, at_cols = rectangle
    rows, cols, exists = rows[at_rows], cols[at_cols], exists[at_cols]
    at = grid(rows.flatten(), cols.flatten(), shape, rows.device)
    allowed = mask.allowed(at).expand(*unsure.shape[:2], rows.numel(), cols.numel())
    bits = _pack_bits(allowed).view(*unsure.shape[:2], *rows.shape, len(cols), -1)
    bits = (bits & _pack_bits(exists)).transpose(3, 4)  # (B, H, R, C, m, n / 8)
    unsure = unsure[:, :, at_rows][..., at_cols]  # (B, H, R, C)
    full = unsure & (bits == 255).flatten(-2).all(-1)
    partial = unsure & ~full & (bits != 0).flatten(-2).any(-1)
    bits, number = _deduplicate(bits[partial])
    entries = torch.cat(
        [_entries(full.nonzero(), 0, heads), _entries(partial.nonzero(), 0, heads, number)], 1
    )
    entries[2] = at_cols[entries[2]]
    entries[1] += at_rows.start
    return entries, bits


def _entries(index: Tensor, first_row: int, heads: int, tile: Tensor | None = None) -> Tensor:
    b, h, r, c = index.unbind(1)
    return torch.stack([b * heads + h, r + first_row, c, torch.full_like(c, -1) if tile is None else tile])


def _pack_bits(booleans: Tensor) -> Tensor:
    """Booleans (…, cols) packed eight to a byte, (…, cols / 8); the number of columns is a multiple of 8.

    Eight booleans are read as one integer. The product moves boolean j from bit 8·j to bit 56 + j, and no two
    bits to the same place, so that nothing is carried.
    """
    # view as int64 needs the booleans side by side.
    words = booleans.contiguous().view(torch.int64)
    return (words * 0x0102040810204080 >> 56).to(torch.uint8)


def unpack_bits(tiles: Tensor) -> Tensor:
    """The booleans (…, cols) that `_pack_bits` has packed to (…, cols / 8)."""
    bits = (tiles.unsqueeze(-1) >> torch.arange(8, dtype=torch.uint8, device=tiles.device)) & 1
    return bits.flatten(-2).bool()


def _find_spans(tiles: Tensor) -> Tensor | None:
    """The first visible key of each row of each tile and the one after the last, (tiles, rows, 2) int32.

    None if a row has gaps, or if the tiles are too many to look at.
    """
    if not 0 < tiles.numel() * 8 <= MAX_TILE_ENTRIES:
        return None
    visible = unpack_bits(tiles).to(torch.uint8)  # (tiles, rows, cols)
    first, count = visible.argmax(-1), visible.sum(-1)
    last = visible.shape[-1] - visible.flip(-1).argmax(-1)
    if not bool(((last - first == count) | (count == 0)).all()):
        return None
    return torch.stack([first, first + count], -1).int().contiguous()


def _deduplicate(tiles: Tensor) -> tuple[Tensor, Tensor]:
    """The distinct tiles, and for each tile the number of its distinct one."""
    if len(tiles) == 0:
        return tiles, torch.zeros(0, dtype=torch.int64, device=tiles.device)
    # torch.unique of whole rows would compare them number by number; a hash is one number.
    words = tiles.flatten(1).view(torch.int64)  # (tiles, bytes / 8)
    # A generator of its own with a fixed seed: the user's random numbers stay as they are.
    hash_factors = torch.randint(
        -(1 << 62), 1 << 62, words.shape[1:], generator=torch.Generator().manual_seed(0), device="cpu"
    )
    _, number = torch.unique((words * hash_factors.to(tiles.device)).sum(-1), return_inverse=True)
    first = torch.full((int(number.max()) + 1,), len(tiles), device=tiles.device)
    first.scatter_reduce_(0, number, torch.arange(len(tiles), device=tiles.device), "amin")
    kept = tiles[first]
    if not torch.equal(kept[number], tiles):  # a hash collision: keep all tiles
        return tiles, torch.arange(len(tiles), device=tiles.device)
    return kept, number
