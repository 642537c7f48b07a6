"""A mask rule over the keys that a cache still holds.

Rules speak of positions among all the tokens there ever were. A cache that forgets holds only some of them:
the first few and a stretch up to the newest, in order. This file translates the one into the other.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from regard.attention.masks.base import And, Blocks, Grid, Mask, full
from regard.attention.masks.named import Alibi, Window, causal
from regard.layers.cache import KVCache


def mask_on_cached_keys(mask: Mask, cache: KVCache, queries: int, keys: int) -> Mask:
    """`mask` for the last `queries` tokens and the `keys` keys that the cache's last update returned.

    What the cache forgets nobody may look at, so its own rule joins: with a `WindowCache(n)` a layer looks as
    with `& window(n)`, however the tokens were cut into updates. Parts that allow everything here are left
    out by plain comparison of numbers, since this runs for every new token.
    """
    gap = cache.length - keys  # how many are forgotten
    parts = [part for part in _parts(mask) if part != cache.rule]
    if cache.rule is not None and (queries > 1 or keys > cache.reach):
        parts.append(cache.rule)
    if queries == 1:
        parts = [part for part in parts if not _sees_all(part, keys, in_order=gap == 0 or cache.first == 0)]
    if gap:
        parts = [part if part is cache.rule else _translated(part, cache.first, gap) for part in parts]
    held = full if not parts else parts[0]
    for part in parts[1:]:
        held = held & part
    return held


def _parts(mask: Mask) -> list[Mask]:
    """The rules that are joined by & in a mask, without `full`."""
    if isinstance(mask, And):
        return _parts(mask.left) + _parts(mask.right)
    return [] if mask is full else [mask]


def _sees_all(part: Mask, keys: int, in_order: bool) -> bool:
    """Whether the newest token surely may look at all of the keys."""
    if isinstance(part, Window):
        return in_order and keys <= part.size
    return part == causal


def _translated(part: Mask, first: int, gap: int) -> Mask:
    """The same rule where `gap` keys are missing after the `first` ones."""
    if part == causal or (first == 0 and isinstance(part, Window | Alibi)):
        return part  # these ask for order or for distance only, and both are as they were
    return CachedKeysMask(part, first, gap)


@dataclass(frozen=True, repr=False, eq=False)
class CachedKeysMask(Mask):
    """A rule over all positions, asked about keys of which `gap` are missing after the `first` ones."""

    inner: Mask
    first: int
    gap: int

    @property
    def biased(self) -> bool:  # type: ignore[override]
        return self.inner.biased

    @property
    def trainable(self) -> bool:  # type: ignore[override]
        return self.inner.trainable

    def _positions(self, k: Tensor) -> Tensor:
        return torch.where(k < self.first, k, k + self.gap)

    def _everywhere(self, at: Grid) -> Grid:
        k = self._positions(at.k)
        return at._replace(q=at.q + self.gap, k=k, cols=k.flatten(), S=at.S + self.gap)

    def allowed(self, at: Grid) -> Tensor:
        return self.inner.allowed(self._everywhere(at))

    def score_bias(self, at: Grid) -> Tensor | None:
        return self.inner.score_bias(self._everywhere(at))

    def block_bounds(self, blocks: Blocks) -> tuple[Tensor, Tensor]:
        # A block across the gap is answered for as if the missing keys were there: on the safe side.
        k_first, k_last = self._positions(blocks.k_first), self._positions(blocks.k_last)
        q_first, q_last = blocks.q_first + self.gap, blocks.q_last + self.gap
        return self.inner.block_bounds(
            Blocks(q_first, q_last, k_first, k_last, blocks.T, blocks.S + self.gap)
        )

    def select(self, batch: slice, heads: slice) -> Mask:
        return CachedKeysMask(self.inner.select(batch, heads), self.first, self.gap)

    def shape_error(self, B: int | None, H: int | None, T: int, S: int) -> str | None:
        return self.inner.shape_error(B, H, T, S + self.gap)

    def __repr__(self) -> str:
        return f"held({self.inner})"
