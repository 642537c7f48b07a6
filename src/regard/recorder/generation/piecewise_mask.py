"""`PiecewiseMask`: a mask for rows that were computed in several calls, each with a rule of its own.

The last resort where several rules cannot be joined into one: it asks each for its rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from regard.attention.masks.base import Blocks, Grid, Mask, grid


class CallSizes(NamedTuple):
    """T queries and S keys."""

    T: int
    S: int


class Segment(NamedTuple):
    """A rule for some rows: `sizes` says of how many, and of how many keys it speaks."""

    mask: Mask
    sizes: CallSizes
    first_row: int
    first_key: int


def pieces_of(mask: Mask, sizes: CallSizes) -> tuple[Segment, ...]:
    return mask.pieces if isinstance(mask, PiecewiseMask) else (Segment(mask, sizes, 0, 0),)


@dataclass(frozen=True, repr=False, eq=False)
class PiecewiseMask(Mask):
    """Rows that were computed in several calls, each with a rule of its own."""

    pieces: tuple[Segment, ...]
    whole: CallSizes

    @property
    def biased(self) -> bool:  # type: ignore[override]
        return any(piece.mask.biased for piece in self.pieces)

    def allowed(self, at: Grid) -> Tensor:
        out = (at.q < 0) & (at.k < 0)  # nothing
        for mask, inside, local in self._asked(at):
            out = out | (inside & mask.allowed(local))
        return out

    def score_bias(self, at: Grid) -> Tensor | None:
        out: Tensor | None = None
        for mask, inside, local in self._asked(at):
            bias = mask.score_bias(local)
            if bias is not None:
                here = torch.where(inside, bias, 0.0)
                out = here if out is None else out + here
        return out

    def _asked(self, at: Grid) -> Iterator[tuple[Mask, Tensor, Grid]]:
        """The rules for these rows; which entries each knows; and the question in its own numbers."""
        rows = at.q - (at.S - at.T)  # (1, 1, rows, 1), counted from the first query
        for mask, (T, S), first_row, first_key in self.pieces:
            row, key = rows - first_row, at.k - first_key
            inside = (row >= 0) & (row < T)
            if not bool(inside.any()):
                continue
            near = (row.flatten().clamp(0, T - 1), key.flatten().clamp(0, S - 1))
            local = grid(*near, (at.b.shape[0], at.h.shape[1], T, S), at.k.device)
            yield mask, inside & (key >= 0) & (key < S), local._replace(b=at.b, h=at.h)

    def block_bounds(self, blocks: Blocks) -> tuple[Tensor, Tensor]:
        table = (blocks.q_first == blocks.q_first) & (blocks.k_first == blocks.k_first)
        return table, ~table

    def children(self) -> tuple[Mask, ...]:
        return tuple(piece.mask for piece in self.pieces)

    def with_children(self, *children: Mask) -> Mask:
        pieces = (p._replace(mask=mask) for p, mask in zip(self.pieces, children, strict=True))
        return PiecewiseMask(tuple(pieces), self.whole)

    def window_size(self) -> int | None:
        sizes = {mask.window_size() for mask in self.children()}
        return sizes.pop() if len(sizes) == 1 else None

    def shape_error(self, B: int | None, H: int | None, T: int, S: int) -> str | None:
        if self.whole != (T, S):
            return f"expected {self.whole.T} queries and {self.whole.S} keys, got {T} and {S}"
        return next(
            (why for p in self.pieces if (why := p.mask.shape_error(B, H, *p.sizes)) is not None), None
        )

    def __repr__(self) -> str:
        return " then ".join(dict.fromkeys(str(piece.mask) for piece in self.pieces))
