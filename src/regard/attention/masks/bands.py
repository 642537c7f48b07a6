"""Masks that are a band around the diagonal: `causal`, `window(n)`, and both.

A kernel needs no list of blocks for these: which blocks it visits, and which of them need masking, is
arithmetic.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from regard.attention.masks.base import And, Keys, Mask, Rows, full
from regard.attention.masks.named import Alibi, Causal, Window


class Band(NamedTuple):
    """Query position q may look at the keys q − behind ≤ k ≤ q + ahead; None is no limit."""

    behind: int | None = None
    ahead: int | None = None

    def __and__(self, other: object) -> Band:
        if not isinstance(other, Band):
            return NotImplemented
        return Band(_least(self.behind, other.behind), _least(self.ahead, other.ahead))

    def moved(self, steps: int) -> Band:
        """The band of queries that are numbered this many positions lower, beside the same keys."""
        behind = None if self.behind is None else self.behind - steps
        return Band(behind, None if self.ahead is None else self.ahead + steps)


def band_of(mask: Mask, T: int, S: int) -> Band | None:
    """The band that a rule is for T queries and S keys, or None if it is not one.

    >>> from regard import causal, prefix, window
    >>> band_of(causal & window(128), 512, 512)
    Band(behind=127, ahead=0)
    >>> band_of(causal | prefix(4), 512, 512) is None
    True
    """
    if mask is full:
        return Band()
    if isinstance(mask, Causal):
        return Band(ahead=T - S if mask.from_start else 0)
    if isinstance(mask, Window):
        return Band(mask.size - 1, mask.ahead)
    if isinstance(mask, And):
        left, right = band_of(mask.left, T, S), band_of(mask.right, T, S)
        return None if left is None or right is None else left & right
    if isinstance(mask, Rows):
        inner = band_of(mask.inner, mask.T, S)
        return None if inner is None else inner.moved(mask.first + T - mask.T)
    if isinstance(mask, Keys):
        inner = band_of(mask.inner, T, mask.S)
        return None if inner is None else inner.moved(mask.S - S - mask.first)
    return None


def split_alibi(mask: Mask) -> tuple[Mask, Tensor | None]:
    """A rule as its yes-or-no part and the slopes (H,) of its linear bias; None where it has none."""
    if isinstance(mask, Alibi):
        return full, mask.slopes
    if isinstance(mask, And):
        (left, a), (right, b) = split_alibi(mask.left), split_alibi(mask.right)
        slopes = b if a is None else a if b is None else a + b
        return right if left is full else left if right is full else And(left, right), slopes
    return mask, None


def _least(a: int | None, b: int | None) -> int | None:
    return b if a is None else a if b is None else min(a, b)
