"""`PiecewiseMask`: a mask for rows that were computed in several calls, each with a mask of its own.

It is the fallback if the masks cannot be joined into one: it evaluates each mask for its own rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from regard.attention.masks.base import Grid, Mask, grid, of_any


class CallSizes(NamedTuple):
    """The number of queries T and of keys S of a call."""

    T: int
    S: int


class Segment(NamedTuple):
    """The mask of some rows and keys: `sizes` are their numbers, from `first_row` and `first_key` on."""

    mask: Mask
    sizes: CallSizes
    first_row: int
    first_key: int


def segments_of(mask: Mask, sizes: CallSizes) -> tuple[Segment, ...]:
    """Return the segments of a mask: its own if it is piecewise, otherwise one of these sizes."""
    return mask.segments if isinstance(mask, PiecewiseMask) else (Segment(mask, sizes, 0, 0),)


@dataclass(frozen=True, repr=False, eq=False)
class PiecewiseMask(Mask):
    """Masks for the rows of several calls; `whole` are the sizes of all rows together."""

    segments: tuple[Segment, ...]
    whole: CallSizes
    biased = of_any("biased")

    def allowed(self, at: Grid) -> Tensor:
        """Return which entries of a grid are visible."""
        out = (at.q < 0) & (at.k < 0)  # nothing
        for mask, inside, local in self._local_grids(at):
            out = out | (inside & mask.allowed(local))
        return out

    def score_bias(self, at: Grid) -> Tensor | None:
        """Return the biases of the entries of a grid, or None if there are none."""
        out: Tensor | None = None
        for mask, inside, local in self._local_grids(at):
            bias = mask.score_bias(local)
            if bias is not None:
                inside_bias = torch.where(inside, bias, 0.0)
                out = inside_bias if out is None else out + inside_bias
        return out

    def _local_grids(self, at: Grid) -> Iterator[tuple[Mask, Tensor, Grid]]:
        """Yield each mask that has rows in a grid, which entries are its own, and the grid in its numbers."""
        rows = at.q - (at.S - at.T)  # (1, 1, rows, 1), counted from the first query
        for mask, (T, S), first_row, first_key in self.segments:
            row, key = rows - first_row, at.k - first_key
            inside = (row >= 0) & (row < T)
            if not bool(inside.any()):
                continue
            # Entries outside of the segment are left out below: any index that its mask knows will do.
            clamped = (row.flatten().clamp(0, T - 1), key.flatten().clamp(0, S - 1))
            local = grid(*clamped, (at.b.shape[0], at.h.shape[1], T, S), at.k.device)
            yield mask, inside & (key >= 0) & (key < S), local._replace(b=at.b, h=at.h)

    def children(self) -> tuple[Mask, ...]:
        """Return the masks of the segments."""
        return tuple(segment.mask for segment in self.segments)

    def with_children(self, *children: Mask) -> Mask:
        """Return the same mask with other masks of its segments."""
        pairs = zip(self.segments, children, strict=True)
        return PiecewiseMask(tuple(segment._replace(mask=mask) for segment, mask in pairs), self.whole)

    def window_size(self) -> int | None:
        """Return the window size that all segments share, or None."""
        sizes = {mask.window_size() for mask in self.children()}
        return sizes.pop() if len(sizes) == 1 else None

    def shape_error(self, B: int | None, H: int | None, T: int, S: int) -> str | None:
        """Return why the mask does not fit a matrix of this shape, or None if it does."""
        if self.whole != (T, S):
            return f"expected {self.whole.T} queries and {self.whole.S} keys, got {T} and {S}"
        errors = (segment.mask.shape_error(B, H, *segment.sizes) for segment in self.segments)
        return next((error for error in errors if error is not None), None)

    def __repr__(self) -> str:
        return " then ".join(dict.fromkeys(str(segment.mask) for segment in self.segments))
