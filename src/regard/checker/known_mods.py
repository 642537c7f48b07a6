"""The masks and scores that a FlexAttention mod may equal, if nothing says what it should be."""

from __future__ import annotations

from collections.abc import Iterator

from regard.attention.masks.named_masks import causal, chunks, prefix
from regard.checker.intent import Intent
from regard.checker.oracle.wiring import Wiring

_CAPS = (1.0, 2.0, 5.0, 10.0, 15.0, 20.0, 25.0, 30.0, 50.0, 100.0)


def known_mods(T: int = 7) -> list[Intent]:
    """Return interpretations with a window, prefix, chunks or soft cap that show in T tokens."""
    return list(_interpretations(T))


def _interpretations(T: int) -> Iterator[Intent]:
    for n in range(1, T):
        yield Intent(Wiring(), True, window=n, features=(f"causal in a window of {n}",))
        yield Intent(Wiring(), False, window=n, features=(f"in a window of {n}, and the future",))
    for n in range(2, T):
        yield Intent(Wiring(), False, rule=causal | prefix(n), features=(f"causal with a prefix of {n}",))
        yield Intent(Wiring(), False, rule=chunks(n), features=(f"in chunks of {n}",))
        yield Intent(Wiring(), True, rule=chunks(n), features=(f"causal in chunks of {n}",))
    for cap in _CAPS:
        for is_causal in (False, True):
            shown = "causal with a soft cap" if is_causal else "with a soft cap"
            yield Intent(Wiring(), is_causal, softcap=cap, features=(f"{shown} of {cap:g}",))
