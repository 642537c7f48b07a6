"""The keys and values of the tokens so far, so that generation computes each of them once.

`update(k, v)` takes those of the new tokens and returns all that these may look at, in the order of their
positions, as views of memory set aside beforehand. One cache serves one layer.

`KVCache` keeps everything, `WindowCache` the latest, `SinkCache` the first few and the latest. This file
knows tensors and their order; what a mask makes of forgotten keys is in `held`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Tensor

from regard.attention.arguments import check_whole_number
from regard.attention.masks.base import Mask
from regard.attention.masks.named import prefix, window

Pair = tuple[Tensor, Tensor]
"""Keys (B, G, S, D) and values (B, G, S, E)."""


class KVCache:
    """Keeps every key and value: at most `max_length`, set aside at once, or without limit, by doubling.

    What `update` returns holds good until the next update. Where gradients are wanted they flow through the
    cache, at the price of a copy with each update: generate under `torch.no_grad()`.

    >>> cache = KVCache(max_length=8)
    >>> keys, values = cache.update(torch.zeros(1, 2, 5, 4), torch.zeros(1, 2, 5, 4))
    >>> keys, values = cache.update(torch.ones(1, 2, 1, 4), torch.ones(1, 2, 1, 4))
    >>> keys.shape, cache
    (torch.Size([1, 2, 6, 4]), KVCache(max_length=8, length=6))
    """

    rule: Mask | None = None  # what a query may look at, as far as the cache is concerned
    reach: float = math.inf  # the most keys that one query may look at
    first: int = 0  # how many of the first keys are never forgotten

    def __init__(self, max_length: int | None = None) -> None:
        self.max_length = None if max_length is None else check_whole_number("max_length", max_length)
        self.length = 0
        """How many tokens have come, forgotten ones too: the position of the next one."""
        self._memory: Pair | None = None  # (B, G, room, D), (B, G, room, E)
        self._start = self._end = 0  # memory[:, :, start:end] is held, in the order of positions

    def update(self, k: Tensor, v: Tensor) -> Pair:
        """Add the keys (B, G, T, D) and values (B, G, T, E) of T new tokens; return all they may look at."""
        self._check(k, v)
        new, held = k.shape[2], self._end - self._start
        # The first new token may look at `reach` keys with its own; older ones are of no use any more.
        stale = max(0, held - int(self.reach) + 1) if new and self.rule is not None else 0
        needed = held - stale + new
        self.length += new
        if torch.is_grad_enabled() and any(x.requires_grad for x in (k, v, *(self._memory or ()))):
            # Writing in place would spoil what backward needs.
            self._memory = keys, values = self._joined(k, v, stale)
            self._start, self._end = 0, needed
            return keys, values
        if needed > 2 * self.reach:  # more than is worth setting aside: a long prompt into a short window
            keys, values = self._joined(k, v, stale)
            self._keep_ends(keys, values)
            return keys, values
        if not self._writable or self._end + new > self._room:
            self._make_room(k, v, needed, stale)
        elif stale:
            self._forget(stale)
        self._write(self._end, k, v)
        self._end += new
        return self._held(self._start, self._end)

    def select(self, rows: Tensor | Sequence[int]) -> None:
        """Keep these sequences of the batch, in this order; one may come twice, as a beam search needs."""
        index = torch.as_tensor(rows)
        if index.ndim != 1 or index.dtype not in (torch.int32, torch.int64):
            raise ValueError(f"rows: expected whole numbers (rows,), got {tuple(index.shape)} {index.dtype}")
        if self._memory is not None:
            keys, values = self._memory
            index = index.to(keys.device)
            self._memory = keys.index_select(0, index), values.index_select(0, index)

    def reset(self) -> None:
        """Forget every token; the memory stays set aside for the next ones."""
        self.length = self._start = self._end = 0
        if not self._writable:
            self._memory = None

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """Move to a device or a dtype, as `Tensor.to` does."""
        if self._memory is not None:
            keys, values = self._memory
            self._memory = keys.to(*args, **kwargs), values.to(*args, **kwargs)
        return self

    @property
    def nbytes(self) -> int:
        """The memory set aside, in bytes."""
        return sum(x.untyped_storage().nbytes() for x in self._memory or ())

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._settings()}, length={self.length})"

    def _settings(self) -> str:
        return f"max_length={self.max_length}"

    def _held(self, start: int, end: int) -> Pair:
        assert self._memory is not None
        keys, values = self._memory
        return keys.narrow(2, start, end - start), values.narrow(2, start, end - start)

    @property
    def _room(self) -> int:
        return 0 if self._memory is None else self._memory[0].shape[2]

    @property
    def _writable(self) -> bool:
        """Whether the memory may be written in place: it is part of no gradient, nor of inference mode."""
        if self._memory is None or any(x.requires_grad for x in self._memory):
            return False
        return torch.is_inference_mode_enabled() or not self._memory[0].is_inference()

    def _write(self, at: int, k: Tensor, v: Tensor) -> None:
        keys, values = self._held(at, at + k.shape[2])
        keys.copy_(k)
        values.copy_(v)

    def _forget(self, stale: int) -> None:
        """Drop the oldest keys after the first ones, which move up to stand before the rest."""
        first = self._held(self._start, self._start + self.first)
        self._start += stale
        if self.first:
            self._write(self._start, first[0].clone(), first[1].clone())

    def _joined(self, k: Tensor, v: Tensor, stale: int) -> Pair:
        """What is held and not stale, and the new ones after it."""
        if self._end == self._start:
            return k, v
        parts = [self._held(self._start, self._end), (k, v)]
        if stale:
            middle = self._start + self.first
            parts[:1] = self._held(self._start, middle), self._held(middle + stale, self._end)
        return torch.cat([part[0] for part in parts], 2), torch.cat([part[1] for part in parts], 2)

    def _make_room(self, k: Tensor, v: Tensor, needed: int, stale: int) -> None:
        """Bring what is held and not stale to the front of a memory with room for the new ones."""
        kept = self._joined(k[:, :, :0], v[:, :, :0], stale)
        self._set_aside(k, v, max(64, 2 * needed))
        self._start, self._end = 0, kept[0].shape[2]
        self._write(0, *kept)

    def _set_aside(self, k: Tensor, v: Tensor, room: int) -> None:
        room = self.max_length or int(min(room, 2 * self.reach))
        if not self._writable or self._room < room:
            shapes = ((*x.shape[:2], room, x.shape[3]) for x in (k, v))
            keys, values = (x.new_empty(shape) for x, shape in zip((k, v), shapes, strict=True))
            self._memory = keys, values

    def _keep_ends(self, keys: Tensor, values: Tensor) -> None:
        """Hold the first keys and the latest that a next token may look at; there are more than enough."""
        last = int(self.reach) - self.first - 1
        self._set_aside(keys, values, 2 * int(self.reach))
        for at, part in ((0, slice(0, self.first)), (self.first, slice(keys.shape[2] - last, None))):
            self._write(at, keys[:, :, part], values[:, :, part])
        self._start, self._end = 0, self.first + last

    def _check(self, k: Tensor, v: Tensor) -> None:
        for name, x in (("k", k), ("v", v)):
            if x.ndim != 4 or x.shape[:3] != k.shape[:3]:
                like = "(B, G, T, D)" if x is k else f"{tuple(k.shape[:3])} before the width, as k has"
                raise ValueError(f"{name}: expected {like}, got {tuple(x.shape)}")
        if self.max_length is not None and self.length + k.shape[2] > self.max_length:
            raise ValueError(
                f"cache: expected at most max_length={self.max_length} tokens, "
                f"got {self.length} held and {k.shape[2]} new"
            )
        for name, x, memory in zip("kv", (k, v), self._memory or (), strict=False):
            same = x.shape[:2] == memory.shape[:2] and x.shape[3] == memory.shape[3]
            if same and x.dtype == memory.dtype and x.device == memory.device:
                continue
            if self.length == 0:  # nothing to lose: another batch may come after a reset
                self._memory = None
                return
            B, G, _, D = memory.shape
            raise ValueError(
                f"{name}: expected ({B}, {G}, T, {D}) in {memory.dtype} on {memory.device}, as in the cache, "
                f"got {tuple(x.shape)} in {x.dtype} on {x.device}: cache.reset() starts anew, "
                "cache.to(…) moves it"
            )


class WindowCache(KVCache):
    """Keeps the latest keys: each token may look at the `size` latest ones, its own among them.

    A layer with this cache looks as one whose mask ends in `& window(size)`, and remembers no more than that.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        size = check_whole_number("size", size)
        self.rule: Mask = window(size)
        self.reach = size

    def _settings(self) -> str:
        return f"size={self.reach}"


class SinkCache(KVCache):
    """Keeps the `first` keys for good, and the `size` latest (Xiao 2024): `& (window(size) | prefix(first))`.

    Positions stay what they were, so a layer gives with this cache what it gives without, under that mask.
    """

    def __init__(self, first: int, size: int) -> None:
        super().__init__()
        self.first, size = check_whole_number("first", first, 0), check_whole_number("size", size)
        self.rule: Mask = window(size) | prefix(self.first)
        self.reach = self.first + size

    def _settings(self) -> str:
        return f"first={self.first}, size={self.reach - self.first:g}"
