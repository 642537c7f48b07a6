"""Temporary replacement of attributes: of an object, or of modules and classes that several threads share.

Unlike a hook, a replaced method leaves no trace on the model that other code could check for.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def override_attribute(obj: Any, name: str, value: Any) -> Iterator[None]:
    """Set `obj.name` to `value` inside the block, and restore it after the block."""
    own = vars(obj)  # nn.Module.__setattr__ would register modules and parameters
    missing = object()
    before = own.get(name, missing)
    own[name] = value
    try:
        yield
    finally:
        if before is missing:
            own.pop(name, None)
        else:
            own[name] = before


class SharedOverride:
    """Replaces attributes of modules and classes while at least one block is open, in any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open = 0
        self._before: dict[tuple[int, str], tuple[Any, Any]] = {}  # the owner, and its own value or None

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Open a block; when the last open block ends, every replaced attribute is restored."""
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

    def replace(self, owner: Any, name: str, wrap: Callable[[Any], Any]) -> None:
        """Set `owner.name` to `wrap(owner.name)`, once, while a block is open."""
        with self._lock:
            if self._open and (id(owner), name) not in self._before:
                self._before[id(owner), name] = (owner, vars(owner).get(name))
                setattr(owner, name, wrap(getattr(owner, name)))
