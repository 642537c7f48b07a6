"""`Interval`: a number between two others, so that a predicate of positions answers for a whole block.

`k <= q` of two intervals is an interval of truth values: its least is whether the comparison holds for all of
the block, its most whether it may hold for any of it. So a mask says once what is visible, and the same
expression tells which blocks are empty and which are full.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import Tensor


def _monotone(operation: Callable[[Any, Any], Any], *, falls_with: str = "") -> Any:
    """An operation that grows or falls with each operand, so that its ends follow from theirs."""

    def method(self: Interval, other: Any) -> Interval:
        least, most = self.least, self.most
        least2, most2 = (other.least, other.most) if isinstance(other, Interval) else (other, other)
        if falls_with == "self":
            least, most = most, least
        elif falls_with == "other":
            least2, most2 = most2, least2
        return Interval(operation(least, least2), operation(most, most2))

    return method


def _of_truth(operation: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def checked(a: Any, b: Any) -> Any:
        if not all(isinstance(x, Tensor) and x.dtype == torch.bool for x in (a, b)):
            raise TypeError("& and | join truth values of intervals, not the bits of numbers")
        return operation(a, b)

    return checked


class Interval:
    """All numbers from `least` to `most`, two tensors of integers, floats or booleans; False is below True.

    What it cannot compute raises, which leaves the block undecided (see `TilePredicate.evaluate`).
    """

    __slots__ = ("least", "most")
    # Comparisons give intervals, so that no two can be keys of a dict.
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, least: Tensor, most: Tensor) -> None:
        self.least, self.most = least, most

    @property
    def device(self) -> torch.device:
        """Where its numbers are."""
        return self.least.device

    def each(self, growing: Callable[[Tensor], Tensor]) -> Interval:
        """The interval of a function that never falls."""
        return Interval(growing(self.least), growing(self.most))

    def __getitem__(self, index: Any) -> Interval:
        return self.each(lambda x: x[index])

    def flatten(self) -> Interval:
        """As `Tensor.flatten`."""
        return self.each(torch.flatten)

    def clamp(self, min: int | None = None, max: int | None = None) -> Interval:
        """As `Tensor.clamp`."""
        return self.each(lambda x: x.clamp(min, max))

    def abs(self) -> Interval:
        """As `Tensor.abs`."""
        least = torch.maximum(self.least, -self.most).clamp(min=0)
        return Interval(least, torch.maximum(-self.least, self.most))

    __abs__ = abs
    __add__ = __radd__ = _monotone(operator.add)
    __sub__ = _monotone(operator.sub, falls_with="other")
    __rsub__ = _monotone(lambda a, b: b - a, falls_with="self")
    __le__ = _monotone(operator.le, falls_with="self")
    __lt__ = _monotone(operator.lt, falls_with="self")
    __ge__ = _monotone(operator.ge, falls_with="other")
    __gt__ = _monotone(operator.gt, falls_with="other")
    __and__ = __rand__ = _monotone(_of_truth(operator.and_))
    __or__ = __ror__ = _monotone(_of_truth(operator.or_))

    def __mul__(self, factor: int) -> Interval:
        return self.each(lambda x: x * _check_factor(factor, 0))

    __rmul__ = __mul__

    def __floordiv__(self, size: int) -> Interval:
        return self.each(lambda x: x // _check_factor(size, 1))

    def __mod__(self, size: int) -> Interval:
        same = self.least // _check_factor(size, 1) == self.most // size  # no multiple lies in between
        return Interval((self.least % size).where(same, 0), (self.most % size).where(same, size - 1))

    def __eq__(self, other: object) -> Any:
        return (self <= other) & (self >= other)

    def __ne__(self, other: object) -> Any:
        return ~(self == other)

    def __invert__(self) -> Interval:
        if self.least.dtype != torch.bool:
            raise TypeError("~ turns truth values of intervals, not the bits of numbers")
        return Interval(~self.most, ~self.least)

    def __bool__(self) -> NoReturn:
        raise TypeError("an interval is neither true nor false")


def _check_factor(n: int, least: int) -> int:
    if type(n) is not int or n < least:  # a negative one would turn the order round
        raise TypeError(f"intervals are multiplied and divided by whole numbers from {least} on")
    return n


class Unknown:
    """An index that is not known: whatever computes with it raises TypeError."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> NoReturn:
        raise TypeError("this index is not known")

    __ne__ = __bool__ = __eq__
