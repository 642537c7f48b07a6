"""Policies that evict keys from the cache: the first and the latest, heavy hitters, observed, small norms.

Each is a score of the cached keys, from what a serving engine knows at that time; the keys with the lowest
scores are evicted.
"""

from __future__ import annotations

from functools import partial
from zlib import crc32

import torch
from torch import Tensor

from regard.attention.arguments import check_whole_number
from regard.attention.position_hash import uniform_hash
from regard.policies.cache_state import CacheState
from regard.policies.policy import Eviction

FIRST = 2.0**52  # above every position, and exact in float64


def is_evicted(
    query_positions: Tensor, key_positions: Tensor, window: int, is_first: Tensor | bool = False
) -> Tensor:
    """Whether a cache of the first keys and the `window` latest ones, a query's own included, lost a key.

    `is_first` says which keys are the first ones. The policy `streaming` and the head score "eviction" both
    ask this.
    """
    is_first = torch.as_tensor(is_first, device=key_positions.device)
    return (key_positions <= query_positions - window) & ~is_first


def streaming(sinks: int = 4) -> Eviction:
    """Keep the first `sinks` keys and the latest (StreamingLLM, Xiao et al. 2023, arXiv:2309.17453)."""
    sinks = check_whole_number("sinks", sinks, 0)

    def score(cache: CacheState) -> Tensor:
        rank = cache.visible.cumsum(-1)  # from 1: padding before the text has 0
        newest = torch.as_tensor(cache.now - 1, device=rank.device)
        may_go = is_evicted(newest, cache.positions, 0, (rank <= sinks) & cache.visible)
        # Above every position, and the first ones highest, which stay if there is no room for all of them.
        return cache.positions.double().where(may_go, FIRST - rank.double())

    return Eviction("streaming", score, "arXiv:2309.17453")


def random(seed: int = 0) -> Eviction:
    """Keep keys at random, every key so far with the same probability: the baseline of all others.

    Every key/value head of every layer has its own draw; `seed` makes others.
    """
    return _draw_keys(check_whole_number("seed", seed, 0), 0)


def _draw_keys(seed: int, layer: int | str) -> Eviction:
    number = layer if isinstance(layer, int) else crc32(layer.encode())

    def score(cache: CacheState) -> Tensor:
        heads = torch.arange(cache.positions.shape[1], device=cache.positions.device)
        layers = torch.full_like(cache.positions, number)
        return uniform_hash(layers, cache.positions, heads[:, None], seed)

    # If all layers drew the same keys, whether the first one, which may have half of all attention, is kept
    # would be decided once for each key/value head of the model: three times in SmolLM2-135M.
    return Eviction("random", score, in_layer=partial(_draw_keys, seed))


def h2o(recent: float = 0.5) -> Eviction:
    """Keep the keys that have received the most attention, and the latest (H2O, Zhang et al. 2023).

    arXiv:2306.14048. `recent` is the share of the budget that goes to the latest keys.
    """
    if not 0 <= recent <= 1:
        raise ValueError(f"recent: expected a share from 0 to 1, got {recent}")

    def score(cache: CacheState) -> Tensor:
        latest = cache.positions >= cache.now - int(recent * cache.budget)
        return cache.received.masked_fill(latest, torch.inf)

    return Eviction("h2o", score, "arXiv:2306.14048", accumulates=True)


def snapkv(window: int = 64, kernel: int = 5) -> Eviction:
    """Keep what the latest queries look at, and its neighbours (SnapKV, Li et al. 2024, arXiv:2404.14469).

    - `window`: how many of the latest queries are observed, a half of the budget at most; their own keys are
      kept.
    - `kernel`: the number of neighbouring keys over which the observed attention is averaged, an odd one.
    """
    window, kernel = check_whole_number("window", window, 1), check_whole_number("kernel", kernel, 1)
    if kernel % 2 == 0:
        raise ValueError(f"kernel: expected an odd number, got {kernel}")

    def score(cache: CacheState) -> Tensor:
        observed = min(window, max(cache.budget // 2, 1))
        earlier = cache.positions < cache.now - observed
        seen = cache.by_kv_head(cache.attention(observed).mean(2)).masked_fill(~earlier, 0.0)
        pooled = torch.nn.functional.avg_pool1d(seen, kernel, 1, kernel // 2)
        return pooled.masked_fill(~earlier, torch.inf)

    return Eviction("snapkv", score, "arXiv:2404.14469")


def tova() -> Eviction:
    """Keep what the last query looks at, as a mean over all heads (TOVA, Oren et al. 2024, arXiv:2401.06104).

    All heads of a layer keep the same keys.
    """

    def score(cache: CacheState) -> Tensor:
        # Mean over all heads, so that they all keep the same keys.
        return cache.attention(1).mean(1).expand_as(cache.positions)

    return Eviction("tova", score, "arXiv:2401.06104")


def key_norm() -> Eviction:
    """Keep the keys with the smallest norms (Devoto et al. 2024, arXiv:2406.11430)."""

    def score(cache: CacheState) -> Tensor:
        norms: Tensor = torch.linalg.vector_norm(cache.keys.float(), dim=-1)
        return -norms

    return Eviction("key_norm", score, "arXiv:2406.11430")
