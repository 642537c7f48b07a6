"""Attention as people write it: implementations with the verdict that the check must give of each."""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import dataclass, field
from typing import Any

from tests.checker.planting import load


@dataclass(frozen=True)
class Program:
    """Source text, and the name of what it defines."""

    source: str
    name: str


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

    def load(self) -> Any:
        """Return what is checked; a program is made into it."""
        return load(self.thing.source, self.thing.name) if isinstance(self.thing, Program) else self.thing


def right(thing: Any, **options: Any) -> Entry:
    """Return the entry of something right, under its own name."""
    return Entry(thing.__name__, thing, options)


def wrong(thing: Any, *mistakes: str, **options: Any) -> Entry:
    """Return the entry of something wrong, under its own name."""
    return Entry(thing.__name__, thing, options, "wrong", mistakes)


def entries() -> list[tuple[str, Entry]]:
    """Return the entries of every module of this package with its name, in the order of the names."""
    modules = sorted(module.name for module in pkgutil.iter_modules(__path__))
    found = {name: importlib.import_module(f"{__name__}.{name}").ENTRIES for name in modules}
    return [(name, entry) for name in modules for entry in found[name]]
