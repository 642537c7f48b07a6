"""Joins the masks of several calls into one mask: `causal & padding(…)` for a whole generation.

The mask of the earlier calls usually describes the new rows too. That is assumed first and checked; if it
does not hold, or takes too long to check, each call keeps its own mask in a `PiecewiseMask`, which evaluates
each for its own rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from regard.attention.masks.base import Grid, Mask, conjunction, full, grid, of_any
from regard.attention.masks.named_masks import causal
from regard.attention.masks.tensor_masks import Documents, Padding
from regard.recorder.certificates.certificate import sampled_rows

SAMPLED = 16
"""How many rows of a mask by position, or of padding, are compared."""
COMPARED_AT_ONCE, MAX_COMPARED = 1 << 22, 1 << 26
"""How many entries of another mask are compared at once, and at most."""


class CallSizes(NamedTuple):
    """The number of queries T and of keys S of a call."""

    T: int
    S: int


class Segment(NamedTuple):
    """The mask of some rows and keys: `sizes` are their numbers, from `first_row` and `first_key` on."""

    mask: Mask
    sizes: CallSizes
    first_row: int = 0
    first_key: int = 0


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


def join_masks(
    old: Segment, new: Segment, kind: str, order: Tensor | None, B: int, H: int, device: torch.device
) -> Mask:
    """Return one mask for the rows so far and the rows that a call adds.

    - `old`, `new`: the masks of the rows so far and of the call.
    - `kind`: how the call continues the rows, as in `StripStep`.
    - `order`: for each batch entry, the old sequence that it continues; None if the batch was not reordered.
    - `B`, `H`: the batch size and the number of heads.
    """
    if order is not None:
        old = old._replace(mask=old.mask.select(order, slice(None)))
    before, added = old.sizes, new.sizes
    S = {"after": before.S + added.T, "again": before.S, "beside": before.S + added.S}[kind]
    whole = CallSizes(before.T + added.T, S)
    earlier = old.mask.segments if isinstance(old.mask, PiecewiseMask) else (old,)
    piecewise = PiecewiseMask((*earlier, new._replace(first_row=before.T, first_key=S - added.S)), whole)
    extended = _extended(old, new, kind, B, H, device)
    if extended is None or extended.shape_error(B, H, *whole) is not None:
        return piecewise
    # A mask by position or of padding has no single row that is unlike the others. Any other may have one.
    is_regular = all(part.positional or part.is_padding for part in new.mask.conjuncts())
    if not is_regular and added.T * S > MAX_COMPARED:
        return piecewise
    rows = before.T + sampled_rows(added.T, SAMPLED if is_regular else added.T, device)
    keys = torch.arange(S, device=device)
    parts = torch.split(rows, max(1, COMPARED_AT_ONCE // S))
    agree = all(_agree(extended, piecewise, part, keys, (B, H, *whole)) for part in parts)
    return extended if agree else piecewise


def _agree(mask: Mask, exact: Mask, rows: Tensor, keys: Tensor, shape: tuple[int, ...]) -> bool:
    """Whether two masks allow the same entries of a tile, and add the same biases to them."""
    device = rows.device
    allowed = mask.tile(rows, keys, shape, device=device)
    if not bool((allowed == exact.tile(rows, keys, shape, device=device)).all()):
        return False
    if not mask.biased and not exact.biased:
        return True
    bias, expected = (x.bias(rows, keys, shape, device=device) for x in (mask, exact))
    return bias is not None and expected is not None and bool((~allowed | (bias == expected)).all())


def _extended(old: Segment, new: Segment, kind: str, B: int, H: int, device: torch.device) -> Mask | None:
    """Return the old mask extended to the new rows, or None if it cannot be expected to hold for them."""
    (mask, before, *_), added, conjuncts = old, new.sizes, new.mask.conjuncts()
    if kind == "beside":
        if conjuncts:
            return None
        one_document = Documents(torch.zeros(1, before.S, dtype=torch.long, device=device))
        return (one_document if mask is full else mask).append_document(added.S)
    if kind == "again":
        return mask if all(conjunct.is_padding for conjunct in mask.conjuncts()) else None
    masks: list[Mask] = []
    for conjunct in mask.conjuncts():
        extended = conjunct.extend(conjuncts, *added)
        if extended is None:
            return None
        masks.append(extended)
    if not any(x.is_causal for x in masks):
        if before.T > 1:
            return None
        masks.insert(0, causal)  # one query that sees all keys is the start of a causal map
    is_token = next((x.key_padding(added.S) for x in conjuncts if x.is_padding), None)  # (B, S)
    if is_token is not None and not any(x.is_padding for x in masks):
        hidden = (~is_token[:, : before.S]).any(0).nonzero().flatten()
        if len(hidden) and bool(mask.tile(range(before.T), hidden, (B, H, *before), device=device).any()):
            return None  # earlier rows see keys that the new mask hides
        masks.append(Padding(pad(is_token, (before.S + added.T - is_token.shape[1], 0), value=True)))
    return conjunction(masks)
