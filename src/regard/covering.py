"""Covering a method of one object for a while. Unlike a hook it leaves no trace that other code looks for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def covered(thing: Any, name: str, cover: Any) -> Iterator[None]:
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
