"""A mask for the keys that a cache still holds.

Masks use absolute positions. Once a cache evicts keys, its indices are no longer positions: it holds the
first few keys and a stretch up to the newest, in order. This file decides which conjuncts of a mask need
translating; `CachedKeysMask` translates.
"""

from __future__ import annotations

from regard.attention.masks.base import Mask, conjunction
from regard.attention.masks.named_masks import causal
from regard.attention.masks.views import CachedKeysMask
from regard.layers.cache import KVCache


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
