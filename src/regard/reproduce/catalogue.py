"""The published results that can be run, by name."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

NAMES = (
    "sinks",
    "induction",
    "eviction",
    "retrieval",
    "collapse",
    "rollout",
    "explanation",
    "dormant",
    "position",
    "packing",
)
"""In the order of the gallery. Each is a file of this package with `ABOUT` and `run(options)`."""


def load(name: str) -> ModuleType:
    """The file of a result: `ABOUT` is a `PublishedResult`, and `run(options)` returns `Findings`."""
    if name not in NAMES:
        raise ValueError(f"name: expected one of {', '.join(NAMES)}, got {name!r}")
    return import_module(f"regard.reproduce.{name}")
