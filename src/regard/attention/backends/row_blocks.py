"""Row blocks: some queries, the span of keys that they see, and a small dense mask of those.

PyTorch's CPU kernel takes a dense mask, but computes what it hides as well. Cut into blocks of queries, a
window costs little more than what it shows. This file knows masks; the kernel runs in `fused_attention`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from regard.attention.backends import tiles
from regard.attention.masks.base import Mask
from regard.attention.masks.block_lists import count_different
from regard.attention.masks.memo import is_memoized, memoize_on_mask
from regard.support.lru import LRUCache

ROWS = 128  # queries of a block
MAX_BIAS_NUMBERS = 1 << 20  # 4 MiB in float32, for all blocks of a mask
TILE_COST = 2  # what an entry of a tile costs on the "tiled" backend, in entries of PyTorch's kernel
MAXSIZE = 16  # masks whose blocks are cached


class RowBlock(NamedTuple):
    """Some queries, and the keys from the first to the last that one of them sees."""

    rows: slice
    keys: slice
    bias: Tensor | None  # (rows, keys): 0 for visible, −inf for hidden; None if every key is visible


_cache: LRUCache[tuple[RowBlock, ...]] = LRUCache(MAXSIZE)


def find_row_blocks(mask: Mask, shape: tuple[int, int, int, int], dtype: torch.dtype) -> tuple[RowBlock, ...]:
    """The row blocks of a mask for attention of `shape`, or none of them where tiles are the better way.

    They are for masks by position and for pure functions that are the same for all sequences and heads; not
    for queries that see no key, nor for masks whose visible keys lie far apart.
    """
    T, S = shape[2:]
    if mask.biased:
        return ()
    if mask.positional:
        return _cache.get((mask, T, S, dtype), lambda: _cut(mask, T, S, dtype))
    if not mask.asks_function or not is_memoized(mask):
        return ()

    def compute() -> tuple[RowBlock, ...]:
        alike = count_different(mask, shape, torch.device("cpu")) == (1, 1)
        return _cut(mask, T, S, dtype) if alike else ()

    return memoize_on_mask(mask, ("row blocks", shape, dtype), compute)


def _cut(mask: Mask, T: int, S: int, dtype: torch.dtype) -> tuple[RowBlock, ...]:
    max_area = TILE_COST * sum(
        (rows.stop - rows.start) * (column.keys.stop - column.keys.start)
        for rows, columns in tiles.visits_between(
            mask, [*range(0, T, tiles.ROWS), T], [*range(0, S, tiles.COLS), S]
        )
        for column in columns
    )
    blocks: list[RowBlock] = []
    area = bias_numbers = 0
    last = torch.ones(0, 0, dtype=torch.bool, device="cpu")
    for rows, columns in tiles.visits_between(mask, [*range(0, T, ROWS), T], [*range(0, S, ROWS), S]):
        if not columns:
            return ()
        # The mask tells of blocks of keys; at both ends, keys that no query sees are cut off after that.
        first, stop = columns[0].keys.start, columns[-1].keys.stop
        # Two blocks of keys may still be cut off at the ends; what exceeds the limit even then is refused
        # early.
        if area + (rows.stop - rows.start) * (stop - first - 2 * ROWS) > max_area:
            return ()
        allowed = mask.tile(rows, slice(first, stop), (T, S))  # (R, C)
        seen = allowed.any(0).nonzero()
        if not bool(allowed.any(1).all()):
            return ()
        keys = slice(first + int(seen[0]), first + int(seen[-1]) + 1)
        allowed = allowed[:, keys.start - first : keys.stop - first]
        area += allowed.numel()
        bias = None
        # Under a window all inner blocks have the same mask, and share one bias.
        if blocks and torch.equal(allowed, last):
            bias = blocks[-1].bias
        elif not bool(allowed.all()):
            bias = torch.zeros(allowed.shape, dtype=dtype, device="cpu").masked_fill_(~allowed, -torch.inf)
            bias_numbers += bias.numel()
        if area > max_area or bias_numbers > MAX_BIAS_NUMBERS:
            return ()
        blocks.append(RowBlock(rows, keys, bias))
        last = allowed
    return tuple(blocks)
