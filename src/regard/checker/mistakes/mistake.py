"""An entry of the catalogue: what a mistake is, what it causes, how to fix it, and how to recognise it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Swap = tuple[str, str]  # text of a correct implementation, and what replaces it


@dataclass(frozen=True)
class Mistake:
    """An entry of the catalogue.

    A mistake without `changes` is found by a probe. A `warning` does not fail the check: PyTorch's attention
    does the same, or the code is right today and will break when the module is moved, saved or given longer
    inputs.
    """

    name: str
    what: str  # completes "your output equals attention …"
    effect: str  # what it does to a model, in a sentence
    fix: str
    origin: str  # where it comes from
    changes: tuple[dict[str, Any], ...] = ()  # fields of `AttentionVariant`, for each form of the mistake
    cache_changes: tuple[dict[str, Any], ...] = ()  # fields of `CacheVariant`, for mistakes of a cache
    warning: bool = False
    layouts: tuple[str, ...] = ()  # the layouts of kernels in which it can be made; () for every code
    plants: dict[str, tuple[Swap, ...]] = field(default_factory=dict)  # by template: see `checker.examples`
    unseen_because: str = ""  # why it has no distance from right numbers, in a sentence, if so
