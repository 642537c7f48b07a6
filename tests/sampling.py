"""Long lists of cases that are much alike: a run takes a share of them, the same in every run.

The share is the number in `REGARD_SHARE`, 0 unless it is given; `REGARD_ALL=1` takes every case.
"""

import inspect
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import torch

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


def together(names: str | Sequence[str], cases: Iterable[Any]) -> Callable[[Callable[..., None]], Any]:
    """Try every case in one test, where a case takes less than the ten milliseconds of a test of its own.

    Like `pytest.mark.parametrize`, whose place it takes; a failure bears a note that says which case it was.
    """
    single = isinstance(names, str)
    tried = list(cases)

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        def run(**others: Any) -> None:
            for case in tried:
                torch.default_generator.manual_seed(0)  # as before a test of its own
                try:
                    test(**({names: case} if single else dict(zip(names, case, strict=True))), **others)
                except BaseException as error:
                    error.add_note(f"The case: {case!r}")
                    raise

        signature = inspect.signature(test)
        left = [x for name, x in signature.parameters.items() if name not in ([names] if single else names)]
        run.__signature__ = signature.replace(parameters=left)  # type: ignore[attr-defined]  # for fixtures
        run.__name__, run.__doc__, run.__module__ = test.__name__, test.__doc__, test.__module__
        run.pytestmark = getattr(test, "pytestmark", [])  # type: ignore[attr-defined]
        return run

    return decorate


def examples(most: int) -> int:
    """Return how many examples Hypothesis draws: a twelfth of the most."""
    return most if os.environ.get("REGARD_ALL") else -(-most // 12)


def describe() -> str:
    """Return what was taken, for the head of a test run."""
    if os.environ.get("REGARD_ALL"):
        return "regard: every case of what is else sampled"
    return f"regard: share {os.environ['REGARD_SHARE']} of what is sampled (REGARD_ALL=1 takes all)"
