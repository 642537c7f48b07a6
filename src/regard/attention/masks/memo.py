"""An LRU cache of values that are derived from a mask, such as block lists and padding biases.

Two masks share an entry if they are of the same classes with the same numbers and hold the same tensors. An
entry is not used any more once one of the tensors is modified or freed. A pure function counts by its code
and all that it reads (see `pure`). Nothing is cached for a mask that holds any other function, which may
change its answer, nor for tensors of inference mode, which do not count their modifications.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable
from typing import Any, TypeVar, cast

from torch import Tensor

from regard.attention.masks.base import Mask
from regard.attention.masks.named_masks import Rule
from regard.attention.masks.pure import identify_function, identify_tensor
from regard.lru import LRUCache

MAXSIZE = 8
"""How many values are cached, over all masks."""
MAX_BYTES = 1 << 30
"""The size of the largest value that is cached, if it says its `nbytes`."""

V = TypeVar("V")
_cache: LRUCache[tuple[list[weakref.ref[Tensor]], Any]] = LRUCache(MAXSIZE)


def memoize_on_mask(mask: Mask, key: Hashable, compute: Callable[[], V]) -> V:
    """The value of `compute()` for this mask and `key`, computed only if it is not cached."""
    tensors: list[Tensor] = []
    identity = _identify(mask, tensors)
    if identity is None:
        return compute()

    entry = _cache.find((identity, key))
    # If a tensor is gone, Python gave its id to a new one.
    if entry is not None and all(ref() is not None for ref in entry[0]):
        return cast(V, entry[1])
    value = compute()
    if getattr(value, "nbytes", 0) <= MAX_BYTES:
        _cache.store((identity, key), ([weakref.ref(tensor) for tensor in tensors], value))
    return value


def is_memoized(mask: Mask) -> bool:
    """Whether values are cached for a mask at all."""
    return _identify(mask, []) is not None


def _identify(value: Any, tensors: list[Tensor]) -> Hashable | None:
    """What identifies a mask or one of its fields, or None if nothing does. Its tensors are collected."""
    if isinstance(value, Tensor):
        return identify_tensor(value, tensors)
    if type(value) is Rule:
        function, selections = (
            identify_function(value.predicate, tensors),
            _identify(value.selections, tensors),
        )
        return None if function is None or selections is None else (Rule, function, selections)
    if isinstance(value, Mask):
        fields = getattr(value, "__dataclass_fields__", None)
        if fields is None:
            return None
        value = (type(value), *(getattr(value, name) for name in fields))
    if isinstance(value, slice):
        value = (slice, value.start, value.stop, value.step)
    if isinstance(value, tuple):
        parts = tuple(_identify(part, tensors) for part in value)
        return None if None in parts else parts
    return ("value", value) if value is None or isinstance(value, int | float | type) else None
