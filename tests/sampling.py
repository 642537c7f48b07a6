"""Long lists of cases that are much alike: a run takes a share of them, the same in every run.

The share is the number in `REGARD_SHARE`, 0 unless it is given; `REGARD_ALL=1` takes every case.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import TypeVar

Case = TypeVar("Case")
Way = TypeVar("Way")


def choose_share() -> None:
    """Set the share of this run, unless it was given."""
    os.environ.setdefault("REGARD_SHARE", "0")


def share(cases: Iterable[Case], parts: int, turn: int = 0) -> list[Case]:
    """Return one part of many cases, spread over all of them; with another `turn`, another part."""
    if os.environ.get("REGARD_ALL"):
        return list(cases)
    return list(cases)[(int(os.environ["REGARD_SHARE"]) + turn) % parts :: parts]


def combine(cases: Iterable[Case], ways: Sequence[Way]) -> list[tuple[Case, Way]]:
    """Return every case in one of several ways, which differs from case to case."""
    return [(case, way) for turn, case in enumerate(cases) for way in share(ways, len(ways), turn)]


def examples(most: int) -> int:
    """Return how many examples Hypothesis draws: a twelfth of the most."""
    return most if os.environ.get("REGARD_ALL") else -(-most // 12)


def describe() -> str:
    """Return what was taken, for the head of a test run."""
    if os.environ.get("REGARD_ALL"):
        return "regard: every case of what is else sampled"
    return f"regard: share {os.environ['REGARD_SHARE']} of what is sampled (REGARD_ALL=1 takes all)"
