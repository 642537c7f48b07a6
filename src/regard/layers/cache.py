"""Key/value caches: the keys and values of the tokens so far, so that generation computes each of them once.

`update(k, v)` appends those of the new tokens and returns all that these may see, in the order of their
positions, as views of preallocated memory. One cache serves one layer.

`KVCache` keeps everything, `WindowCache` the latest keys, `SinkCache` the first few and the latest. Once a
cache evicts keys, its indices are no longer positions, which masks use: `mask_on_cached_keys` translates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Tensor

from regard.attention.arguments import check_whole_number
from regard.attention.masks.base import Mask, conjunction
from regard.attention.masks.named_masks import causal, prefix, window
from regard.attention.masks.views import CachedKeysMask
from regard.attention.tensors import check_floats

Pair = tuple[Tensor, Tensor]
"""Keys (B, G, S, D) and values (B, G, S, E)."""


class KVCache:
    """Keeps every key and value.

    The memory for `max_length` tokens is allocated at once; if `max_length` is None, it grows by doubling.
    What `update` returns is valid until the next update. Gradients flow through the cache at the price of a
    copy with each update, so generate under `torch.no_grad()`.

    >>> cache = KVCache(max_length=8)
    >>> keys, values = cache.update(torch.zeros(1, 2, 5, 4), torch.zeros(1, 2, 5, 4))
    >>> keys, values = cache.update(torch.ones(1, 2, 1, 4), torch.ones(1, 2, 1, 4))
    >>> keys.shape, cache
    (torch.Size([1, 2, 6, 4]), KVCache(max_length=8, length=6))
    """

    rule: Mask | None = None
    """The mask that the cache implies: evicted keys are invisible. None if nothing is evicted."""
    reach: float = math.inf
    """The largest number of keys that one query sees."""
    first: int = 0
    """How many of the first keys are never evicted."""

    def __init__(self, max_length: int | None = None) -> None:
        self.max_length = None if max_length is None else check_whole_number("max_length", max_length)
        self.length = 0
        """The number of tokens so far, evicted ones too, which is the position of the next one."""
        self._memory: Pair | None = None  # (B, G, room, D), (B, G, room, E)
        self._start = self._end = 0  # memory[:, :, start:end] holds the keys, in the order of positions

    def update(self, k: Tensor, v: Tensor) -> Pair:
        """Append the keys k (B, G, T, D) and values v (B, G, T, E) of T new tokens.

        Returns the keys (B, G, S, D) and values (B, G, S, E) that the new tokens may see, the new ones last.
        """
        self._check(k, v)
        new, held = k.shape[2], self._end - self._start
        # The first new token sees `reach` keys, its own included; older ones can be evicted.
        stale = max(0, held - int(self.reach) + 1) if new and self.rule is not None else 0
        needed = held - stale + new
        self.length += new
        if torch.is_grad_enabled() and any(x.requires_grad for x in (k, v, *(self._memory or ()))):
            # Writing in place would overwrite tensors that backward needs.
            self._memory = keys, values = self._concatenate(k, v, stale)
            self._start, self._end = 0, needed
            return keys, values
        if needed > 2 * self.reach:  # a long prompt into a short window needs no memory for all of it
            keys, values = self._concatenate(k, v, stale)
            self._keep_ends(keys, values)
            return keys, values
        if not self._writable or self._end + new > self._capacity:
            self._grow(k, v, needed, stale)
        elif stale:
            self._evict(stale)
        self._write(self._end, k, v)
        self._end += new
        return self._view(self._start, self._end)

    def select(self, rows: Tensor | Sequence[int]) -> None:
        """Keep the sequences `rows` of the batch, in this order; a beam search may repeat one."""
        index = rows if isinstance(rows, Tensor) else torch.tensor(rows, device="cpu")
        if index.ndim != 1 or index.dtype not in (torch.int32, torch.int64):
            raise ValueError(f"rows: expected whole numbers (rows,), got {tuple(index.shape)} {index.dtype}")
        if self._memory is not None:
            keys, values = self._memory
            index = index.to(keys.device)
            self._memory = keys.index_select(0, index), values.index_select(0, index)

    def reset(self) -> None:
        """Remove every token; the memory stays allocated for the next ones."""
        self.length = self._start = self._end = 0
        if not self._writable:
            self._memory = None

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """Move the keys and values to a device or a dtype, with the arguments of `Tensor.to`."""
        if self._memory is not None:
            keys, values = self._memory
            self._memory = keys.to(*args, **kwargs), values.to(*args, **kwargs)
        return self

    @property
    def nbytes(self) -> int:
        """The allocated memory in bytes."""
        return sum(x.untyped_storage().nbytes() for x in self._memory or ())

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._settings()}, length={self.length})"

    def _settings(self) -> str:
        return f"max_length={self.max_length}"

    def _view(self, start: int, end: int) -> Pair:
        assert self._memory is not None
        keys, values = self._memory
        return keys.narrow(2, start, end - start), values.narrow(2, start, end - start)

    @property
    def _capacity(self) -> int:
        return 0 if self._memory is None else self._memory[0].shape[2]

    @property
    def _writable(self) -> bool:
        """Whether the memory may be written in place: it has no gradient and is no inference tensor."""
        if self._memory is None or any(x.requires_grad for x in self._memory):
            return False
        return torch.is_inference_mode_enabled() or not self._memory[0].is_inference()

    def _write(self, at: int, k: Tensor, v: Tensor) -> None:
        keys, values = self._view(at, at + k.shape[2])
        keys.copy_(k)
        values.copy_(v)

    def _evict(self, stale: int) -> None:
        """Remove the oldest keys after the first ones, and move the first ones up before the rest."""
        first = self._view(self._start, self._start + self.first)
        self._start += stale
        if self.first:
            self._write(self._start, first[0].clone(), first[1].clone())

    def _concatenate(self, k: Tensor, v: Tensor, stale: int) -> Pair:
        """The keys and values that are held and not stale, followed by the new ones."""
        if self._end == self._start:
            return k, v
        parts = [self._view(self._start, self._end), (k, v)]
        if stale:
            middle = self._start + self.first
            parts[:1] = self._view(self._start, middle), self._view(middle + stale, self._end)
        return torch.cat([part[0] for part in parts], 2), torch.cat([part[1] for part in parts], 2)

    def _grow(self, k: Tensor, v: Tensor, needed: int, stale: int) -> None:
        """Move what is held and not stale to the front of a memory that has room for `needed` tokens."""
        kept = self._concatenate(k[:, :, :0], v[:, :, :0], stale)
        self._allocate(k, v, max(64, 2 * needed))
        self._start, self._end = 0, kept[0].shape[2]
        self._write(0, *kept)

    def _allocate(self, k: Tensor, v: Tensor, room: int) -> None:
        """Allocate memory for `room` tokens like k and v, or for `max_length`, unless there is enough."""
        room = self.max_length or int(min(room, 2 * self.reach))
        if not self._writable or self._capacity < room:
            shapes = ((*x.shape[:2], room, x.shape[3]) for x in (k, v))
            keys, values = (x.new_empty(shape) for x, shape in zip((k, v), shapes, strict=True))
            self._memory = keys, values

    def _keep_ends(self, keys: Tensor, values: Tensor) -> None:
        """Hold only the first keys and the latest that the next token may see, of more keys than that."""
        last = int(self.reach) - self.first - 1
        self._allocate(keys, values, 2 * int(self.reach))
        for at, part in ((0, slice(0, self.first)), (self.first, slice(keys.shape[2] - last, None))):
            self._write(at, keys[:, :, part], values[:, :, part])
        self._start, self._end = 0, self.first + last

    def _check(self, k: Tensor, v: Tensor) -> None:
        for name, x in (("k", k), ("v", v)):
            check_floats(name, x, values=False)
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
            if self.length == 0:  # after a reset, another batch may follow
                self._memory = None
                return
            B, G, _, D = memory.shape
            raise ValueError(
                f"{name}: expected ({B}, {G}, T, {D}) in {memory.dtype} on {memory.device}, as in the cache, "
                f"got {tuple(x.shape)} in {x.dtype} on {x.device}: cache.reset() empties it, "
                "cache.to(…) moves it"
            )


class WindowCache(KVCache):
    """Keeps the latest keys: each token sees the `size` latest ones, its own included.

    A layer with this cache attends as one whose mask ends in `& window(size)`, in memory for `size` tokens.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        size = check_whole_number("size", size)
        self.rule: Mask = window(size)
        self.reach = size

    def _settings(self) -> str:
        return f"size={self.reach}"


class SinkCache(KVCache):
    """Keeps the `first` keys forever, and the `size` latest ones (Xiao 2024).

    Tokens keep their positions, so a layer with this cache attends as one without, whose mask ends in
    `& (window(size) | prefix(first))`.
    """

    def __init__(self, first: int, size: int) -> None:
        super().__init__()
        self.first, size = check_whole_number("first", first, 0), check_whole_number("size", size)
        self.rule: Mask = window(size) | prefix(self.first)
        self.reach = self.first + size

    def _settings(self) -> str:
        return f"first={self.first}, size={self.reach - self.first:g}"


def mask_on_cached_keys(mask: Mask, cache: KVCache, queries: int, keys: int) -> Mask:
    """`mask` for the last `queries` tokens and the `keys` keys that the cache's last update returned.

    Evicted keys are invisible, so the cache's own mask joins: with a `WindowCache(n)` a layer attends as with
    `& window(n)`, however the tokens were cut into updates. Conjuncts that allow everything here are left out
    by comparing numbers only, since this runs for every new token.
    """
    evicted = cache.length - keys
    conjuncts = [conjunct for conjunct in mask.conjuncts() if conjunct != cache.rule]
    if cache.rule is not None and (queries > 1 or keys > cache.reach):
        conjuncts.append(cache.rule)
    if queries == 1:
        # From the oldest key to the newest; the first keys of a SinkCache stand far before the others.
        span = keys if cache.first == 0 else cache.length
        conjuncts = [conjunct for conjunct in conjuncts if not _shows_all(conjunct, span)]
    if evicted:
        conjuncts = [
            conjunct if conjunct is cache.rule else _translate(conjunct, cache.first, evicted)
            for conjunct in conjuncts
        ]
    return conjunction(conjuncts)


def _shows_all(mask: Mask, keys: int) -> bool:
    """Whether the newest query sees the latest `keys` keys, by the numbers of a band."""
    band = mask.band(1, keys)
    return band is not None and band.holds(0) and band.holds(1 - keys)


def _translate(mask: Mask, first: int, evicted: int) -> Mask:
    """The same mask where `evicted` keys are missing after the `first` ones."""
    if mask == causal or (first == 0 and mask.translation_invariant):
        return mask  # these depend on order or on distance only, and both are as they were
    return CachedKeysMask(mask, first, evicted)
