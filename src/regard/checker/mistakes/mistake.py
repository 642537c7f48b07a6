"""One named mistake: what it is, what it does, how to mend it, and how to recognise it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Swap = tuple[str, str]  # a line of a right implementation, and what the mistake makes of it


@dataclass(frozen=True)
class Mistake:
    """An entry of the catalogue.

    `changes` are the variants that it may show itself as (see `regard.checker.oracle.variant`); a mistake
    without any is found by a probe. A `caution` does not fail the check: PyTorch's attention does the same,
    or the code is right today and will break when the module is moved, saved or given longer inputs.
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
