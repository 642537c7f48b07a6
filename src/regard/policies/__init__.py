"""Cache policies and sparse selections: functions from what an engine knows to the keys that it keeps."""

from regard.policies.cache_state import CacheState
from regard.policies.evictions import h2o, key_norm, random, snapkv, streaming, tova
from regard.policies.measurement import measure
from regard.policies.policy import Eviction, Selection, SelectionState
from regard.policies.rounding import round_cache
from regard.policies.selections import best, blocks, quest

__all__ = [
    "CacheState",
    "Eviction",
    "Selection",
    "SelectionState",
    "best",
    "blocks",
    "h2o",
    "key_norm",
    "measure",
    "quest",
    "random",
    "round_cache",
    "snapkv",
    "streaming",
    "tova",
]
