"""A thread-safe LRU cache."""

from __future__ import annotations

import itertools
import threading
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
        self._values: dict[Hashable, list[Any]] = {}  # the value, and when it was used last
        self._clock = itertools.count()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._values

    def get(self, key: Hashable, compute: Callable[[], Value]) -> Value:
        """Return the value cached under `key`, calling `compute` for it if there is none.

        The lock is not held while `compute` runs: two threads may compute the same value, which is harmless.
        """
        value = self.find(key)
        if value is None:
            value = compute()
            self.store(key, value)
        return value

    def find(self, key: Hashable) -> Value | None:
        """Return the value cached under `key`, or None if there is none.

        It takes no lock and moves nothing, since every call of `attend` waits for it.
        """
        entry = self._values.get(key)
        if entry is None:
            return None
        entry[1] = next(self._clock)
        return entry[0]  # type: ignore[no-any-return]

    def store(self, key: Hashable, value: Value) -> None:
        """Cache `value` under `key`. If that is too much, evict an eighth, since finding the oldest takes
        time."""
        with self._lock:
            self._values[key] = [value, next(self._clock)]
            if len(self._values) > self.maxsize:
                oldest_first = sorted(self._values, key=lambda key: self._values[key][1])
                for old in oldest_first[: 1 + self.maxsize // 8]:
                    del self._values[old]

    def discard_if(self, condition: Callable[[Any], bool]) -> None:
        """Remove the values whose keys meet a condition."""
        with self._lock:
            for key in [key for key in self._values if condition(key)]:
                del self._values[key]

    def discard(self, key: Hashable) -> None:
        """Remove the value cached under `key`, if there is one."""
        with self._lock:
            self._values.pop(key, None)
