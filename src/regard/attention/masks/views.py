"""Masks that show part of another mask: some of its rows, some of its keys, or its visibility without its
bias.

A view numbers queries and keys from 0 again and translates every question into the positions of the mask
inside. This file knows positions; which rows a map selects and which keys a cache holds is decided by the
callers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from regard.attention.masks.base import Grid, Mask, of_any
from regard.attention.masks.grid import Band, look_up


@dataclass(frozen=True, repr=False)
class MaskView(Mask):
    """Another mask, of which only some queries or keys are used; those are numbered from 0 again."""

    inner: Mask
    biased, hides, trainable, is_causal = map(of_any, ("biased", "hides", "trainable", "is_causal"))

    def _move(self, at: Grid) -> Grid:
        """The tile, or the blocks, in the positions of the mask inside."""
        return at

    def allowed(self, at: Grid) -> Tensor:
        return self.inner.evaluate(self._move(at))

    def score_bias(self, at: Grid) -> Tensor | None:
        return self.inner.score_bias(self._move(at))

    def children(self) -> tuple[Mask, ...]:
        return (self.inner,)

    def with_children(self, *children: Mask) -> Mask:
        return replace(self, inner=children[0])

    def restrict(self, other: Mask) -> Mask:
        return self.with_children(self.inner.restrict(other))

    def window_size(self) -> int | None:
        return self.inner.window_size()


def _shift(span: slice | Tensor, steps: int) -> slice | Tensor:
    # A slice stays a slice: indexing with it is a view, and with a tensor a copy.
    return slice(span.start + steps, span.stop + steps) if isinstance(span, slice) else span + steps


@dataclass(frozen=True, repr=False)
class Rows(MaskView, stored=True):
    """The queries of another mask from `first` on, out of its `T`: a map of which only some rows are kept."""

    first: int
    T: int

    def _move(self, at: Grid) -> Grid:
        q = at.q + (self.first + at.T - self.T)  # query i of these stands at i + first + S − T
        return at._replace(q=q, rows=_shift(at.rows, self.first), T=self.T)

    def band(self, T: int, S: int) -> Band | None:
        band = self.inner.band(self.T, S)
        return None if band is None else band.shifted(self.first + T - self.T)

    def first_position(self, T: int, S: int) -> int:
        return self.first + self.inner.first_position(self.T, S)

    def shape_error(self, B: int | None, H: int | None, T: int, S: int) -> str | None:
        if self.first + T > self.T:
            return f"expected at most {self.T - self.first} queries, got {T}"
        return self.inner.shape_error(B, H, self.T, S)

    def __repr__(self) -> str:
        return f"rows of {self.inner}"


@dataclass(frozen=True, repr=False)
class Submatrix(MaskView, stored=True):
    """A part of another mask, which has T queries and S keys, both at the positions 0, 1, 2, …

    It has the queries from `first_row` on and the keys from `first_key` on.
    """

    first_row: int
    first_key: int
    T: int
    S: int

    def _move(self, at: Grid) -> Grid:
        return at._replace(
            q=at.q - (at.S - at.T) + self.first_row,
            k=at.k + self.first_key,
            rows=_shift(at.rows, self.first_row),
            cols=_shift(at.cols, self.first_key),
            T=self.T,
            S=self.S,
        )

    def restrict(self, other: Mask) -> Mask:
        return self & other

    def shape_error(self, B: int | None, H: int | None, T: int, S: int) -> str | None:
        if self.first_row + T > self.T or self.first_key + S > self.S:
            return f"expected at most {self.T}×{self.S} with what comes before, got {T}×{S}"
        return self.inner.shape_error(B, H, self.T, self.S)

    def __repr__(self) -> str:
        return f"part of {self.inner}"


@dataclass(frozen=True, repr=False)
class Keys(MaskView):
    """The keys of another mask from `first` on, out of its `S`: a map of which only some keys are used."""

    first: int
    S: int

    def _move(self, at: Grid) -> Grid:
        cols = _shift(at.cols, self.first)
        return at._replace(q=at.q + self.S - at.S, k=at.k + self.first, cols=cols, S=self.S)

    def band(self, T: int, S: int) -> Band | None:
        band = self.inner.band(T, self.S)
        return None if band is None else band.shifted(self.S - S - self.first)

    def first_position(self, T: int, S: int) -> int:
        return self.inner.first_position(T, self.S) - self.first

    def shape_error(self, B: int | None, H: int | None, T: int, S: int) -> str | None:
        if self.first + S > self.S:
            return f"expected at most {self.S - self.first} keys, got {S}"
        return self.inner.shape_error(B, H, T, self.S)

    def __repr__(self) -> str:
        return f"keys of {self.inner}"


@dataclass(frozen=True, repr=False, eq=False)
class CachedKeysMask(MaskView):
    """Another mask over the keys of a cache that evicted the `gap` keys after the `first` ones.

    The mask inside uses absolute positions. Once a cache evicts keys, the index of a key in the cache is no
    longer its position.
    """

    first: int
    gap: int

    def _move(self, at: Grid) -> Grid:
        # A block across the gap counts as if it still held the evicted keys, which is on the safe side.
        k = at.k + (at.k >= self.first) * self.gap
        return at._replace(q=at.q + self.gap, k=k, cols=k.flatten(), S=at.S + self.gap)

    def shape_error(self, B: int | None, H: int | None, T: int, S: int) -> str | None:
        return self.inner.shape_error(B, H, T, S + self.gap)

    def __repr__(self) -> str:
        return f"cached({self.inner})"


@dataclass(frozen=True, repr=False, eq=False)
class Positions(MaskView):
    """Some queries and keys of another mask for `T` queries and `S` keys: two texts share only these.

    `rows` (n,) are the numbers of the queries and `keys` (m,) those of the keys, both increasing.
    """

    is_causal = False  # in these numbers

    rows: Tensor
    keys: Tensor
    T: int
    S: int

    def window_size(self) -> int | None:
        return None

    def _move(self, at: Grid) -> Grid:
        # A block counts as if it held what is left out between its first and its last, too.
        rows = look_up(self.rows.to(at.q.device)[None], at.rows)[0]
        keys = look_up(self.keys.to(at.k.device)[None], at.cols)[0]
        q = (rows + self.S - self.T)[None, None, :, None]
        return at._replace(q=q, k=keys[None, None, None], rows=rows, cols=keys, T=self.T, S=self.S)

    def shape_error(self, B: int | None, H: int | None, T: int, S: int) -> str | None:
        if (len(self.rows), len(self.keys)) != (T, S):
            return f"expected {len(self.rows)} queries and {len(self.keys)} keys, got {T} and {S}"
        return self.inner.shape_error(B, H, self.T, self.S)

    def __repr__(self) -> str:
        return f"positions of {self.inner}"


@dataclass(frozen=True, repr=False, eq=False)
class MaskOnly(MaskView):
    """The visibility of another mask, without the numbers that it adds to the scores."""

    biased = False
    trainable = False

    def score_bias(self, at: Grid) -> Tensor | None:
        return None

    def band(self, T: int, S: int) -> Band | None:
        return self.inner.band(T, S)

    def first_position(self, T: int, S: int) -> int:
        return self.inner.first_position(T, S)

    def __repr__(self) -> str:
        return f"visible({self.inner})"
