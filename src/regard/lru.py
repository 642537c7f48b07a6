"""What was made lately, kept at hand and bounded; several threads may ask at once."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

Made = TypeVar("Made")


class LRUCache(Generic[Made]):
    """At most `most` things by name; the one that was longest not asked for goes first."""

    def __init__(self, most: int) -> None:
        self.most, self.made, self.lock = most, OrderedDict[tuple[object, ...], Made](), threading.Lock()

    def get(self, name: tuple[object, ...], make: Callable[[], Made]) -> Made:
        with self.lock:
            if name in self.made:
                self.made.move_to_end(name)
                return self.made[name]
        made = make()  # outside the lock: another thread may make the same, which does no harm
        with self.lock:
            self.made[name] = made
            while len(self.made) > self.most:
                self.made.popitem(last=False)
        return made
