"""Attention as people write it: implementations with the verdict that the check must give of each."""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Entry:
    """One implementation: the options that check() is given, and what it must say.

    ``mistakes`` are names of which one must be diagnosed first, for what is wrong; ``why`` is a phrase of the
    sentence that says why nothing was decided, or what failed.
    """

    name: str
    thing: Any
    options: dict[str, Any] = field(default_factory=dict)
    verdict: str = "right"
    mistakes: tuple[str, ...] = ()
    why: str = ""


def entries() -> list[Entry]:
    """Return the entries of every module of this package, in the order of the modules' names."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__) if module.name != "__main__")
    return [entry for name in names for entry in importlib.import_module(f"{__name__}.{name}").ENTRIES]
