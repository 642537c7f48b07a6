"""What the layers ask of the numbers they are made with."""

from __future__ import annotations

import math


def whole(name: str, value: object, least: int = 1) -> int:
    """`value`, if it is a whole number of at least `least`; otherwise ValueError with the argument's name."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name}: expected a whole number of at least {least}, got {value!r}")
    return value


def positive(name: str, value: object) -> float:
    """`value`, if it is a finite number above 0."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ValueError(f"{name}: expected a number above 0, got {value!r}")
    return float(value)
