"""Policies by name, and whatever else stands for one: a function of yours, or a mask."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from regard.attention.masks.base import Mask
from regard.policies.evictions import h2o, key_norm, random, snapkv, streaming, tova
from regard.policies.policy import Eviction, Policy, Selection
from regard.policies.selections import best, blocks, quest

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
