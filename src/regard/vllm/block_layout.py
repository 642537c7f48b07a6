"""`BlockLayout`: where the keys and values of each token lie inside a block of vLLM's paged cache.

It differs from backend to backend, and on a CPU with the processor. So it is learned: the implementation's
own function writes numbered elements into a block of our own, and where they are found is where they lie.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

BASE = 128  # of the digits that are written: exact in every floating dtype


class CachedTokens(NamedTuple):
    """Keys (G, S, D) and values (G, S, E) of consecutive tokens."""

    k: Tensor
    v: Tensor


class BlockLayout:
    """Where keys and values lie in a block: `keys` (tokens, G, D) and `values` (tokens, G, E) are indices.

    They count the numbers of one block. A cache is a tensor whose first dimension counts the blocks.
    """

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        self.keys, self.values = keys, values

    @property
    def size(self) -> int:
        """The number of tokens in a block."""
        return len(self.keys)

    @classmethod
    def learn(
        cls,
        cache: Tensor,
        kv_heads: int,
        width: int,
        value_width: int,
        write: Callable[[Tensor, Tensor, Tensor, Tensor], object],
    ) -> BlockLayout:
        """Learn the layout of a cache by `write(keys, values, cache, slots)`, which stores tokens in one."""
        scratch = torch.zeros_like(cache[:1])
        size, rest = divmod(scratch.numel(), kv_heads * (width + value_width))
        if rest or not size:
            raise ValueError(
                f"cache: expected blocks of keys and values of {kv_heads} heads, {width} and {value_width} "
                f"wide, got blocks of {scratch.numel()} numbers"
            )
        marks = torch.arange(1, scratch.numel() + 1, device=cache.device)  # 0: nothing was written
        keys = size * kv_heads * width
        key_marks, value_marks = marks[:keys], marks[keys:]
        slots = torch.arange(size, device=cache.device)
        found = torch.zeros_like(marks)
        for digit in itertools.takewhile(lambda d: BASE**d <= len(marks), itertools.count()):
            digits = [(part // BASE**digit % BASE).to(cache.dtype) for part in (key_marks, value_marks)]
            scratch.zero_()
            write(
                digits[0].view(size, kv_heads, width),
                digits[1].view(size, kv_heads, value_width),
                scratch,
                slots,
            )
            found += scratch[0].flatten().long() * BASE**digit
        order = found.argsort()
        if not torch.equal(found[order], marks):
            raise ValueError(
                "cache: expected each key and value to be stored once and unchanged, but they are not"
            )
        return cls(order[:keys].view(size, kv_heads, width), order[keys:].view(size, kv_heads, value_width))

    def read(self, cache: Tensor, blocks: Tensor, first: int, stop: int) -> CachedTokens:
        """Return the tokens from `first` up to `stop`; `blocks` are the numbers of a request's blocks."""
        start = first // self.size
        used = cache[blocks[start : -(-stop // self.size)].long()].flatten(1)  # (blocks, numbers in a block)
        rows = slice(first - start * self.size, stop - start * self.size)
        k, v = (used[:, x].flatten(0, 1)[rows].transpose(0, 1) for x in (self.keys, self.values))
        return CachedTokens(k, v)
