"""A thread-safe LRU cache."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

Value = TypeVar("Value")


class LRUCache(Generic[Value]):
    """A cache of at most `maxsize` values; the least recently used one is evicted first.

    >>> cache = LRUCache(maxsize=2)
    >>> [cache.get(key, lambda: key.upper()) for key in "abac"]
    ['A', 'B', 'A', 'C']
    >>> "a" in cache, "b" in cache
    (True, False)
    """

    def __init__(self, maxsize: int) -> None:
        self.maxsize = maxsize
        self._values: OrderedDict[Hashable, Value] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._values

    def get(self, key: Hashable, compute: Callable[[], Value]) -> Value:
        """Return the value cached under `key`, calling `compute` for it if there is none.

        The lock is not held while `compute` runs: two threads may compute the same value, which is harmless.
        """
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key]
        value = compute()
        with self._lock:
            self._values[key] = value
            while len(self._values) > self.maxsize:
                self._values.popitem(last=False)
        return value

    def discard_if(self, condition: Callable[[Any], bool]) -> None:
        """Remove the values whose keys meet a condition."""
        with self._lock:
            for key in [key for key in self._values if condition(key)]:
                del self._values[key]

    def discard(self, key: Hashable) -> None:
        """Remove the value cached under `key`, if there is one."""
        with self._lock:
            self._values.pop(key, None)
