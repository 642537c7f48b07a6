"""`Spans`: disjoint runs of positions, with names: words, sentences or turns to whoever made them.

This file knows positions only. Maps pool over spans (`m.pool(rows, cols)`); what a span stands for is known
where it is made.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from regard.attention.arguments import check_whole_number
from regard.attention.tensors import check_whole_numbers


class NamedSpan(NamedTuple):
    """One of `Spans`: the positions from `start` up to, but without, `stop`."""

    start: int
    stop: int
    name: str


@dataclass(frozen=True)
class Spans:
    """Disjoint spans of positions in increasing order. Gaps between them are allowed.

    `starts` and `stops` are sequences of whole numbers: span n holds the positions from starts[n] up to, but
    without, stops[n]. `names` has one text a span; by default a span is named by its positions.

    >>> from regard.maps import Spans
    >>> spans = Spans([0, 5], [3, 9], ["question", "answer"])
    >>> len(spans), spans.find("answer")
    (2, 1)
    >>> spans.membership(10)
    tensor([ 0,  0,  0, -1, -1,  1,  1,  1,  1, -1])
    """

    starts: tuple[int, ...]
    stops: tuple[int, ...]
    names: tuple[str, ...]

    def __init__(
        self,
        starts: Sequence[int] | Tensor,
        stops: Sequence[int] | Tensor,
        names: Sequence[str] | None = None,
    ) -> None:
        firsts, lasts = _whole_numbers("starts", starts), _whole_numbers("stops", stops)
        if len(firsts) != len(lasts):
            raise ValueError(f"stops: expected {len(firsts)}, one for each start, got {len(lasts)}")
        end = 0
        for number, (first, last) in enumerate(zip(firsts, lasts, strict=True)):
            if first < end:
                raise ValueError(
                    f"starts: expected increasing, disjoint spans, but span {number} starts at {first}, "
                    f"before {end}"
                )
            if last <= first:
                raise ValueError(
                    f"stops: expected spans with at least one position, but span {number} is "
                    f"from {first} to {last}"
                )
            end = last
        if names is None:
            names = [
                str(first) if last - first == 1 else f"{first}–{last - 1}"
                for first, last in zip(firsts, lasts, strict=True)
            ]
        # A string is a sequence of texts as well, and would name each span by a letter.
        elif isinstance(names, str) or not all(isinstance(name, str) for name in names):
            raise ValueError(f"names: expected a sequence of texts, one for each span, got {names!r:.60}")
        if len(names) != len(firsts):
            raise ValueError(f"names: expected {len(firsts)}, one for each span, got {len(names)}")
        object.__setattr__(self, "starts", tuple(firsts))
        object.__setattr__(self, "stops", tuple(lasts))
        object.__setattr__(self, "names", tuple(names))

    @classmethod
    def from_edges(cls, edges: Sequence[int] | Tensor, names: Sequence[str] | None = None) -> Spans:
        """Spans without gaps, from each of the increasing `edges` to the next; `names` is as for `Spans`.

        >>> Spans.from_edges([0, 3, 7]).names
        ('0–2', '3–6')
        """
        numbers = _whole_numbers("edges", edges)
        if len(numbers) < 2 or numbers[0] < 0 or any(b <= a for a, b in pairwise(numbers)):
            raise ValueError(f"edges: expected at least two increasing positions, got {numbers!r:.60}")
        return cls(numbers[:-1], numbers[1:], names)

    def __len__(self) -> int:
        return len(self.starts)

    def __iter__(self) -> Iterator[NamedSpan]:
        return map(NamedSpan, self.starts, self.stops, self.names)

    def __getitem__(self, number: int) -> NamedSpan:
        """Span `number`, as `(start, stop, name)`."""
        return NamedSpan(self.starts[number], self.stops[number], self.names[number])

    def find(self, name: str) -> int:
        """The number of the span with this name; KeyError unless there is exactly one."""
        return find_name("name", self.names, name)

    def bounds(self) -> Tensor:
        """Starts and stops as one tensor, (2, spans)."""
        return torch.tensor([self.starts, self.stops], dtype=torch.long, device="cpu")

    def membership(self, n: int) -> Tensor:
        """The number of the span that each of n positions is in, (n,); −1 outside of all spans."""
        n = check_whole_number("n", n, 0)
        starts, stops = self.bounds()
        positions = torch.arange(n, device="cpu")
        number = torch.searchsorted(starts, positions, right=True) - 1
        # A zero at the end, so that −1, which is the last index, is inside of nothing.
        inside = (number >= 0) & (positions < torch.cat([stops, stops.new_zeros(1)])[number])
        return number.where(inside, -1)

    def shift(self, steps: int) -> Spans:
        """The same spans, `steps` positions further on."""
        return Spans([a + steps for a in self.starts], [b + steps for b in self.stops], self.names)


def find_name(argument: str, names: Sequence[str], name: str) -> int:
    """The number of the span with a name; a KeyError that names the `argument` unless there is just one."""
    if names.count(name) != 1:
        many = f"{names.count(name)} of them" if name in names else "none of them"
        shown = ", ".join(repr(own) for own in names[:8]) + (", …" if len(names) > 8 else "")
        raise KeyError(f"{argument}: expected the name of one span ({shown}), got {name!r}, which is {many}")
    return names.index(name)


def as_bounds(name: str, value: int | Sequence[int] | Tensor | Spans, first: int, last: int) -> Tensor:
    """Starts and stops (2, spans) of spans within the positions from `first` up to `last`.

    `value` is a count of equal spans, increasing edges, or `Spans`; `name` is the argument that errors name.
    """
    if isinstance(value, Spans):
        bounds = value.bounds()
    # A tensor of no dimensions is a count, as `int` is.
    elif isinstance(value, list | tuple | range) or (isinstance(value, Tensor) and value.ndim):
        try:
            bounds = Spans.from_edges(value).bounds()
        except ValueError as error:
            raise ValueError(f"{name}: {str(error).partition(': ')[2]}") from None
    else:
        # A map without rows or without keys has no cells.
        count = check_whole_number(name, value, min(1, last - first), last - first)
        return equal_bounds(last - first, count) + first
    if not bounds.numel():
        raise ValueError(f"{name}: expected at least one span, got none")
    if bounds[0, 0] < first or bounds[1, -1] > last:
        raise ValueError(
            f"{name}: expected spans within the positions {first} to {last}, "
            f"got {int(bounds[0, 0])} to {int(bounds[1, -1])}"
        )
    return bounds


def equal_bounds(n: int, count: int) -> Tensor:
    """Starts and stops (2, count) of n positions in equal spans, with edges at floor(i · n / count)."""
    edges = torch.arange(count + 1, device="cpu") * n // max(count, 1)
    return torch.stack([edges[:-1], edges[1:]])


def _whole_numbers(name: str, values: Sequence[int] | Tensor) -> list[int]:
    """Positions as a list."""
    tensor = check_whole_numbers(name, values, "whole positions in one dimension")
    if tensor.ndim != 1:
        raise ValueError(f"{name}: expected whole positions in one dimension, got {tuple(tensor.shape)}")
    numbers: list[int] = tensor.tolist()
    return numbers


def number_members(counts: Tensor) -> tuple[Tensor, Tensor]:
    """For groups of so many members, all of them in order: the group of each, and its number in it.

    >>> import torch
    >>> [x.tolist() for x in number_members(torch.tensor([2, 3]))]
    [[0, 0, 1, 1, 1], [0, 1, 0, 1, 2]]
    """
    group = torch.arange(len(counts), device="cpu").repeat_interleave(counts)
    return group, torch.arange(len(group), device="cpu") - (counts.cumsum(0) - counts)[group]
