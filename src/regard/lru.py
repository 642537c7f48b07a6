"""`LRUCache`, the one least-recently-used cache of the package."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

V = TypeVar("V")


class LRUCache(Generic[V]):
    """A thread-safe LRU cache of at most `maxsize` values.

    >>> cache = LRUCache(maxsize=2)
    >>> [cache.get(key, lambda: key.upper()) for key in "abac"]
    ['A', 'B', 'A', 'C']
    >>> "a" in cache, "b" in cache
    (True, False)
    """

    def __init__(self, maxsize: int) -> None:
        self.maxsize = maxsize
        self._values: OrderedDict[Hashable, V] = OrderedDict()  # the least recently used one first
        self._lock = threading.Lock()

    def get(self, key: Hashable, compute: Callable[[], V]) -> V:
        """The value of `key`, from `compute()` if it is not cached."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key]
        value = compute()  # outside the lock: two threads may compute the same value, which does no harm
        with self._lock:
            self._values[key] = value
            while len(self._values) > self.maxsize:
                self._values.popitem(last=False)
        return value

    def discard(self, key: Hashable) -> None:
        """Remove the value of `key`, if there is one."""
        with self._lock:
            self._values.pop(key, None)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._values

    def __len__(self) -> int:
        return len(self._values)
