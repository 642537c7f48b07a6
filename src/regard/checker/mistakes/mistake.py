"""One named mistake: what it is, what it does, how to mend it, and how to recognise it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Swap = tuple[str, str]  # a line of a right implementation, and what the mistake makes of it


@dataclass(frozen=True)
class Mistake:
    """An entry of the catalogue.

    `changes` are the recipes that it may show itself as (see `regard.checker.recipe`); a mistake without any
    is found by a probe. `caution` marks what PyTorch's own attention does too, or what is right until the day
    it is moved, saved or stretched: worth saying, not worth a verdict of wrong.
    """

    name: str
    what: str  # follows "your output equals attention …" where there are changes
    effect: str
    fix: str
    seen: str
    changes: tuple[dict[str, Any], ...] = ()
    caution: bool = False
    plants: dict[str, tuple[Swap, ...]] = field(
        default_factory=dict
    )  # by template: see `regard.checker.examples`
