"""A thread-safe LRU cache."""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

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
        # The least recently used first; each value with its bytes.
        self._values: OrderedDict[Hashable, tuple[Value, int]] = OrderedDict()
        self._total = 0  # bytes
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

        It takes no lock, since calls of `attend` wait for it.
        """
        entry = self._values.get(key)
        if entry is None:
            return None
        try:  # noqa: SIM105 (contextlib.suppress takes a microsecond)
            self._values.move_to_end(key)
        except KeyError:  # another thread has just evicted it
            pass
        return entry[0]

    def store(self, key: Hashable, value: Value, nbytes: int = 0) -> None:
        """Cache `value`, which takes `nbytes`, under `key`, unless it is larger than all may be together."""
        with self._lock:
            # Removed first, so that the bytes of a value that is replaced are not counted twice.
            self._total -= self._values.pop(key, (None, 0))[1]
            if nbytes > self.max_bytes:
                return
            self._values[key] = value, nbytes
            self._total += nbytes
            while len(self._values) > self.maxsize or self._total > self.max_bytes:
                self._total -= self._values.popitem(last=False)[1][1]
