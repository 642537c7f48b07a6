"""Attributes that are replaced for a while: of one object, or of one that several threads share.

Unlike a hook, a replaced method leaves no trace that other code looks for.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def override_attribute(thing: Any, name: str, cover: Any) -> Iterator[None]:
    """`thing.name` is `cover` inside the block, and after it exactly what it was."""
    own = vars(thing)  # nn.Module's own __setattr__ has other ideas
    missing = object()
    before = own.get(name, missing)
    own[name] = cover
    try:
        yield
    finally:
        if before is missing:
            own.pop(name, None)
        else:
            own[name] = before


class SharedOverride:
    """Replaces attributes of modules and classes while at least one block is open, in whatever thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open = 0
        self._before: dict[tuple[int, str], tuple[Any, Any]] = {}  # the owner, and what it held itself

    @contextmanager
    def opened(self) -> Iterator[None]:
        """What is replaced stays so until the last block is left."""
        with self._lock:
            self._open += 1
        try:
            yield
        finally:
            with self._lock:
                self._open -= 1
                if not self._open:
                    for (_, name), (owner, own) in self._before.items():
                        if own is None:
                            delattr(owner, name)
                        else:
                            setattr(owner, name, own)
                    self._before.clear()

    def replace(self, owner: Any, name: str, cover: Callable[[Any], Any]) -> None:
        """`owner.name` becomes `cover(owner.name)`, once, while a block is open."""
        with self._lock:
            if self._open and (id(owner), name) not in self._before:
                self._before[id(owner), name] = (owner, vars(owner).get(name))
                setattr(owner, name, cover(getattr(owner, name)))
