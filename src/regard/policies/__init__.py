"""Cache policies and sparse selections: functions from what an engine knows to the keys that it keeps."""

from regard.policies.cache_state import CacheState
from regard.policies.measurement import measure
from regard.policies.named_policies import best, blocks, h2o, key_norm, quest, random, snapkv, streaming, tova
from regard.policies.policy import Eviction, Selection, SelectionState
from regard.policies.retention import Retained, RetentionCurve
from regard.policies.rounded_cache import Rounded, round_cache

__all__ = [
    "CacheState",
    "Eviction",
    "Retained",
    "RetentionCurve",
    "Rounded",
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
