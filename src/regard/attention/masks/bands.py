"""`Band`: the keys around the diagonal that `causal`, `window(n)` and both together make visible.

A kernel needs no list of blocks for a band: which blocks it visits, and which of them need masking, follows
by arithmetic. `Mask.band` tells which masks are bands; this file knows two distances only.
"""

from __future__ import annotations

from typing import NamedTuple


class Band(NamedTuple):
    """Query position q sees the keys q − behind ≤ k ≤ q + ahead; None means no limit."""

    behind: int | None = None
    ahead: int | None = None

    def __and__(self, other: object) -> Band:
        if not isinstance(other, Band):
            return NotImplemented
        return Band(_least(self.behind, other.behind), _least(self.ahead, other.ahead))

    def shifted(self, steps: int) -> Band:
        """The band of queries that are numbered `steps` positions lower, with the keys as they were."""
        behind = None if self.behind is None else self.behind - steps
        return Band(behind, None if self.ahead is None else self.ahead + steps)

    def hides_keys(self, T: int, S: int) -> bool:
        """Whether a key is hidden from all of T queries, the last of which stands at the last of S keys."""
        return (self.behind is not None and self.behind < S - T) or (
            self.ahead is not None and self.ahead < 0
        )

    def holds(self, step: int) -> bool:
        """Whether a query sees the key `step` positions after its own."""
        return not (self.behind is not None and step < -self.behind) and not (
            self.ahead is not None and step > self.ahead
        )


def _least(a: int | None, b: int | None) -> int | None:
    return b if a is None else a if b is None else min(a, b)
