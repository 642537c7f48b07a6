"""Indices of a tile, edges of blocks, and bands of the T×S matrix, from which masks compute visibility.

The last query is aligned with the last key: query i stands at position i + S − T, which is what a cache
needs. This file knows positions; which of them are visible is said by the masks.
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from regard.attention.masks.interval import Interval, Unknown
from regard.attention.tensors import WHOLE_NUMBERS, check_tensor

FEW_PAIRS = 16  # up to this number, a loop over the pairs of edges takes fewer operations

Span = slice | range | Tensor
"""Some rows or columns of the matrix: `slice(0, 128)`, `range(0, 128)` or a tensor of indices."""


class Grid(NamedTuple):
    """The indices of a tile, each shaped so that together they broadcast to (B, H, rows, cols).

    Those of a table of blocks are an `Interval` in the place of each tensor (see `Blocks.grid`).
    """

    b: Tensor  # (B, 1, 1, 1) batch item
    h: Tensor  # (1, H, 1, 1) query head
    q: Tensor  # (1, 1, rows, 1) position of the query among the keys
    k: Tensor  # (1, 1, 1, cols) key
    rows: slice | Tensor  # the same queries, counted from the first query
    cols: slice | Tensor  # the same keys
    T: int
    S: int


class Blocks(NamedTuple):
    """A table of blocks: first and last query position (R, 1) and first and last key (1, C) of each."""

    q_first: Tensor
    q_last: Tensor
    k_first: Tensor
    k_last: Tensor
    T: int
    S: int

    def grid(self) -> Grid:
        """The blocks as a tile whose positions are intervals, and whose sequences and heads are unknown."""
        q: Any = Interval(self.q_first, self.q_last)
        k: Any = Interval(self.k_first, self.k_last)
        rows = q if self.S == self.T else q - (self.S - self.T)
        unknown: Any = Unknown()
        return Grid(unknown, unknown, q, k, rows, k, self.T, self.S)


class Band(NamedTuple):
    """The keys around the diagonal that `causal`, `window(n)` and both together make visible.

    Query position q sees the keys q − behind ≤ k ≤ q + ahead; None means no limit. A kernel needs no list of
    blocks for a band: which blocks it visits, and which of them need masking, follows by arithmetic.
    """

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


def full_shape(shape: tuple[int, ...]) -> tuple[int, int, int, int]:
    """(T, S), (H, T, S) or (B, H, T, S) as (B, H, T, S)."""
    if not 2 <= len(shape) <= 4:
        raise ValueError(f"shape: expected (T, S) or (B, H, T, S), got {tuple(shape)}")
    B, H, T, S = (1,) * (4 - len(shape)) + tuple(shape)
    return B, H, T, S


def grid(
    rows: Span, cols: Span, shape: tuple[int, ...] | None = None, device: torch.device | str = "cpu"
) -> Grid:
    """The index tensors of a tile. Query i of T stands at position i + S − T."""
    B, H, T, S = (1, 1, 0, 0) if shape is None else full_shape(shape)
    i, rows = indices("rows", rows, None if shape is None else T, device)
    k, cols = indices("cols", cols, None if shape is None else S, device)
    b, h = torch.arange(B, device=device).view(B, 1, 1, 1), torch.arange(H, device=device).view(1, H, 1, 1)
    return Grid(b, h, (i + S - T).view(1, 1, -1, 1), k.view(1, 1, 1, -1), rows, cols, T, S)


def indices(
    name: str, span: Span, length: int | None, device: torch.device | str
) -> tuple[Tensor, slice | Tensor]:
    """The indices of a slice, a range or a tensor, and the same as a slice where that is possible.

    `name` is the argument that errors name, and `length` the limit of the indices; None is no limit.
    """
    if isinstance(span, Tensor):
        if check_tensor(name, span).ndim != 1 or span.dtype not in WHOLE_NUMBERS:
            raise _span_error(name, f"{tuple(span.shape)} {span.dtype}")
        index = span.to(device=device, dtype=torch.long)
        if index.is_cpu and len(index):  # reading the numbers would make the host wait for a GPU
            _check_within(name, int(index.min()), int(index.max()), length)
        return index, index
    if isinstance(span, slice):
        if length is None and (span.stop is None or span.stop < 0 or (span.start or 0) < 0):
            raise ValueError(f"{name}: {span} needs the attention's shape=(T, S)")
        span = range(*span.indices(span.stop if length is None else length))
    if not isinstance(span, range):
        raise _span_error(name, type(span).__name__)
    if not len(span):  # torch.arange refuses range(3, 1)
        return torch.arange(0, device=device), slice(0, 0)
    ends = span[0], span[-1]  # min(span) would iterate over all of it
    _check_within(name, min(ends), max(ends), length)
    index = torch.arange(span.start, span.stop, span.step, device=device)
    return index, slice(span.start, span.stop) if span.step == 1 else index


def _span_error(name: str, got: str) -> ValueError:
    return ValueError(f"{name}: expected a slice, a range or a 1-D tensor of whole indices, got {got}")


def _check_within(name: str, least: int, most: int, length: int | None) -> None:
    if least < 0 or (length is not None and most >= length):
        limit = "0 or more" if length is None else f"from 0 to {length - 1}"
        raise ValueError(f"{name}: expected indices {limit}, got some from {least} to {most}")


def one_block(T: int, S: int) -> Blocks:
    """The whole matrix as one block."""
    # range takes no step of 0.
    return block_table(T, S, max(T, 1), max(S, 1))


def block_table(T: int, S: int, rows: int, cols: int, device: torch.device | str = "cpu") -> Blocks:
    """The matrix of T queries and S keys cut into blocks of rows × cols, smaller at the far edges."""
    return blocks_between([*range(0, max(T, 1), rows), T], [*range(0, max(S, 1), cols), S], device)


def blocks_between(q_edges: list[int], k_edges: list[int], device: torch.device | str = "cpu") -> Blocks:
    """The matrix cut at these edges, which start at 0 and end at T and S."""
    T, S = q_edges[-1], k_edges[-1]
    q = torch.tensor(q_edges, device=device).view(-1, 1) + S - T
    k = torch.tensor(k_edges, device=device).view(1, -1)
    return Blocks(q[:-1], q[1:] - 1, k[:, :-1], k[:, 1:] - 1, T, S)


def always(index: Any) -> Tensor:
    """True for each of the indices, which are a tensor or an interval."""
    return cast(Tensor, index.each(always) if isinstance(index, Interval) else index >= index)


def look_up(table: Tensor, index: Any) -> Tensor:
    """The columns (B, n) of a table (B, S) at n indices, which are a slice, a tensor or an interval."""
    if isinstance(index, Interval):
        return cast(Tensor, Interval(*extremes(table, index.least.flatten(), index.most.flatten())))
    return table[:, index.flatten() if isinstance(index, Tensor) else index]


def extremes(values: Tensor, first: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
    """The minimum and maximum of values[:, first:last + 1] for each pair of edges, (B, number of pairs).

    Both are 0 where there are no values (T or S is 0).
    """
    if len(first) <= FEW_PAIRS:
        parts = [values[:, a : b + 1] for a, b in zip(first.tolist(), last.tolist(), strict=True)]
        parts = [part if part.shape[1] else values.new_zeros(len(values), 1) for part in parts]
        return torch.stack([p.amin(-1) for p in parts], -1), torch.stack([p.amax(-1) for p in parts], -1)
    # A sparse table: every range is covered by two overlapping ranges whose length is a power of two, and the
    # extremes of length 2n follow from two of length n. A few operations serve any number of pairs.
    B, S = values.shape
    least = most = values.new_zeros(B, len(first))
    lengths = last - first + 1
    low = high = values
    for size in (1 << n for n in range(int(lengths.max()).bit_length() if S else 0)):
        if size > 1:
            low = torch.minimum(low[:, : -size // 2], low[:, size // 2 :])
            high = torch.maximum(high[:, : -size // 2], high[:, size // 2 :])
        of_size = (lengths >= size) & (lengths < 2 * size)
        starts, ends = (edge.clamp(0, S - size) for edge in (first, last + 1 - size))
        least = torch.where(of_size, torch.minimum(low[:, starts], low[:, ends]), least)
        most = torch.where(of_size, torch.maximum(high[:, starts], high[:, ends]), most)
    return least, most
