"""An LRU cache of values that are derived from a mask, such as block lists and padding biases.

Two masks share an entry if they are of the same classes with the same numbers and hold the same tensors. An
entry is not used any more once one of the tensors is modified or freed. Nothing is cached for a mask that
holds a function, which may change its answer, nor for tensors of inference mode, which do not count their
modifications.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable
from typing import Any, TypeVar, cast

from torch import Tensor

from regard.attention.masks.base import Mask
from regard.lru import LRUCache

MAXSIZE = 8
"""How many values are cached, over all masks."""

V = TypeVar("V")
_cache: LRUCache[tuple[list[weakref.ref[Tensor]], Any]] = LRUCache(MAXSIZE)


def memoize_on_mask(mask: Mask, key: Hashable, compute: Callable[[], V]) -> V:
    """The value of `compute()` for this mask and `key`, computed only if it is not cached."""
    tensors: list[Tensor] = []
    identity = _identity(mask, tensors)
    if identity is None:
        return compute()

    def make() -> tuple[list[weakref.ref[Tensor]], Any]:
        return [weakref.ref(tensor) for tensor in tensors], compute()

    entry = _cache.get((identity, key), make)
    if any(ref() is None for ref in entry[0]):  # Python gave the id of a freed tensor to a new one
        _cache.discard((identity, key))
        entry = _cache.get((identity, key), make)
    return cast(V, entry[1])


def _identity(value: Any, tensors: list[Tensor]) -> Hashable | None:
    """What identifies a mask or one of its fields, or None if nothing does. Its tensors are collected."""
    if isinstance(value, Tensor):
        if value.is_inference():
            return None
        tensors.append(value)
        return id(value), value._version
    if isinstance(value, Mask):
        fields = getattr(value, "__dataclass_fields__", None)
        if fields is None:
            return None
        value = (type(value), *(getattr(value, name) for name in fields))
    if isinstance(value, tuple):
        parts = tuple(_identity(part, tensors) for part in value)
        return None if None in parts else parts
    return ("value", value) if value is None or isinstance(value, int | float | type) else None
