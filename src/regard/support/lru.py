"""A thread-safe LRU cache."""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

Value = TypeVar("Value")


class LRUCache(Generic[Value]):
    """A cache of at most `maxsize` values, and of `max_bytes` if their sizes are given to `store`.

    The least recently used value is evicted first.

    >>> cache = LRUCache(maxsize=2)
    >>> [cache.get(key, lambda: key.upper()) for key in "abac"]
    ['A', 'B', 'A', 'C']
    >>> "a" in cache, "b" in cache
    (True, False)
    """

    def __init__(self, maxsize: int, max_bytes: float = math.inf) -> None:
        self.maxsize, self.max_bytes = maxsize, max_bytes
        # A list and not a tuple: `find` writes the time into it in one operation, which needs no lock under
        # the GIL.
        self._values: dict[Hashable, list[Any]] = {}  # the value, when it was used last, and its bytes
        self._total = 0  # bytes
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

        It takes no lock and moves nothing, since calls of `attend` wait for it.
        """
        entry = self._values.get(key)
        if entry is None:
            return None
        entry[1] = next(self._clock)
        return entry[0]  # type: ignore[no-any-return]

    def store(self, key: Hashable, value: Value, nbytes: int = 0) -> None:
        """Cache `value`, which takes `nbytes`, under `key`, unless it is larger than all may be together.

        If there are too many values then, an eighth goes, since finding the oldest takes time.
        """
        with self._lock:
            # Removed first, so that the bytes of a value that is replaced are not counted twice.
            self._discard(key)
            if nbytes > self.max_bytes:
                return
            self._values[key] = [value, next(self._clock), nbytes]
            self._total += nbytes
            least = 1 + self.maxsize // 8 if len(self._values) > self.maxsize else 0
            if least or self._total > self.max_bytes:
                oldest_first = sorted(self._values, key=lambda key: self._values[key][1])
                for n, old in enumerate(oldest_first):
                    if n >= least and self._total <= self.max_bytes:
                        break
                    self._discard(old)

    def _discard(self, key: Hashable) -> None:
        entry = self._values.pop(key, None)
        self._total -= 0 if entry is None else entry[2]
