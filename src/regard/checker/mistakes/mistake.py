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
    symptom: str = field(kw_only=True)  # what you see in training, in the map or in what the model writes
    why: str = field(kw_only=True)  # how the mistake leads there
    test: str = field(kw_only=True)  # the name of a test that finds it: see `checker.property_tests`
    changes: tuple[dict[str, Any], ...] = ()  # fields of `AttentionVariant`, for each form of the mistake
    cache_changes: tuple[dict[str, Any], ...] = ()  # fields of `CacheVariant`, for mistakes of a cache
    warning: bool = False
    layouts: tuple[str, ...] = ()  # the layouts of kernels in which it can be made; () for every code
    plants: dict[str, tuple[Swap, ...]] = field(default_factory=dict)  # by template: see `checker.examples`
    # The right program, by template, as swaps: where the mistake is in an option that the template has not.
    mended: dict[str, tuple[Swap, ...]] = field(default_factory=dict)
    unseen_because: str = ""  # why it has no distance from right numbers, in a sentence, if so
