"""The policies by name: those that evict keys from the cache, and those that choose keys for each query.

An eviction is a score of the cached keys from what a serving engine knows at that time, and the keys with the
lowest scores are evicted. A function of yours or a mask stands for a policy, too.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any
from zlib import crc32

import torch
from torch import Tensor

from regard.attention.arguments import check_whole_number
from regard.attention.masks.base import Mask
from regard.attention.position_hash import uniform_hash
from regard.policies.cache_state import CacheState
from regard.policies.policy import Eviction, Policy, Selection, SelectionState

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

    return Eviction("streaming", score)


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

    return Eviction("h2o", score, accumulates=True)


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

    return Eviction("snapkv", score)


def tova() -> Eviction:
    """Keep what the last query looks at, as a mean over all heads (TOVA, Oren et al. 2024, arXiv:2401.06104).

    All heads of a layer keep the same keys.
    """

    def score(cache: CacheState) -> Tensor:
        # Mean over all heads, so that they all keep the same keys.
        return cache.attention(1).mean(1).expand_as(cache.positions)

    return Eviction("tova", score)


def key_norm() -> Eviction:
    """Keep the keys with the smallest norms (Devoto et al. 2024, arXiv:2406.11430)."""

    def score(cache: CacheState) -> Tensor:
        norms: Tensor = torch.linalg.vector_norm(cache.keys.float(), dim=-1)
        return -norms

    return Eviction("key_norm", score)


def quest(page: int = 16) -> Selection:
    """Read the pages with the greatest possible score (Quest, Tang et al. 2024, arXiv:2406.10774).

    The bound follows from the smallest and greatest entry of every channel among the keys of a page. `page`
    is the number of keys in one; a budget that is smaller has pages of its own size.
    """

    def score(state: SelectionState) -> Tensor:
        keys, q = state.key_blocks(), state.queries  # (B, G, blocks, block, D)
        above = state.products(keys.amax(3), q.clamp(min=0))
        return state.choose_newest(above + state.products(keys.amin(3), q.clamp(max=0)))

    return Selection("quest", score, check_whole_number("page", page, 1))


def blocks(size: int = 64) -> Selection:
    """Read the blocks whose mean key fits the query best (MoBA, Lu et al. 2025, arXiv:2502.13189).

    `size` is the number of keys in a block; a budget that is smaller has blocks of its own size. MInference
    and NSA choose blocks by pooled keys, too.
    """

    def score(state: SelectionState) -> Tensor:
        return state.choose_newest(state.products(state.key_blocks().mean(3)))

    return Selection("blocks", score, check_whole_number("size", size, 1))


def best() -> Selection:
    """Read the keys with the largest weights, of every query and head: no policy can hold a greater share."""
    return Selection("best", lambda state: state.map.tile(state.rows, state.keys))


USUAL = ("streaming", "h2o", "snapkv")
"""The policies that a command and a page measure unless others are named."""
BASELINES = ("random", "best")
"""What every policy stands beside."""
OWN = "own"
"""The name of what the layers themselves do not see: their windows, or a sparse selection."""
POLICIES: dict[str, Callable[[], Policy]] = {
    "streaming": streaming,
    "h2o": h2o,
    "snapkv": snapkv,
    "tova": tova,
    "key_norm": key_norm,
    "quest": quest,
    "blocks": blocks,
    "random": random,
    "best": best,
}


def find_policy(policy: Any) -> Policy | Mask | str:
    """Return a policy by its name, or made of a function of a `CacheState`; a mask and "own" stay.

    >>> str(find_policy("h2o"))
    'h2o'
    >>> find_policy("h2")
    Traceback (most recent call last):
    ValueError: policy: expected one of streaming, h2o, snapkv, tova, key_norm, quest, blocks, random, best, \
own, a policy, a function or a mask, got 'h2'
    """
    if isinstance(policy, Eviction | Selection | Mask):
        return policy
    if isinstance(policy, str) and policy == OWN:
        return policy
    if isinstance(policy, str) and policy in POLICIES:
        return POLICIES[policy]()
    if policy in POLICIES.values():  # `policies.h2o` without its brackets
        made: Policy = policy()
        return made
    if callable(policy):
        return Eviction(getattr(policy, "__name__", type(policy).__name__), policy, accumulates=True)
    names = ", ".join((*POLICIES, OWN))
    raise ValueError(f"policy: expected one of {names}, a policy, a function or a mask, got {policy!r}")
