"""Masks that follow from the positions of query and key alone: causal, windows, prefixes, chunks, rectangles.

Each is a dataclass of numbers. The functions that check their arguments are in `named_masks`.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from regard.attention.arguments import check_whole_number
from regard.attention.masks.bands import Band
from regard.attention.masks.base import Mask
from regard.attention.masks.grid import Grid, always


@dataclass(frozen=True, repr=False)
class Causal(Mask, stored=True):
    """A query sees its own position and earlier ones.

    The last query is aligned with the last key. `causal.top_left` aligns the first query with the first key,
    as PyTorch does, which differs when there are more keys than queries.
    """

    from_start: bool = False
    is_causal = True
    positional = True

    @property
    def top_left(self) -> Causal:
        """The causal mask that counts queries and keys from the same start."""
        return Causal(from_start=True)

    @property
    def translation_invariant(self) -> bool:  # type: ignore[override]
        return not self.from_start

    def allowed(self, at: Grid) -> Tensor:
        return at.k <= (at.q - (at.S - at.T) if self.from_start else at.q)

    def simplified(self, shape: tuple[int, ...]) -> Mask:
        # Over as many queries as keys both alignments are the same, and backends know `causal` by identity.
        plain = causal if shape[-1] == shape[-2] else self
        return Mask.simplified(plain, shape)

    def band(self, T: int, S: int) -> Band | None:
        return Band(ahead=T - S if self.from_start else 0)

    def __repr__(self) -> str:
        return "causal.top_left" if self.from_start else "causal"


@dataclass(frozen=True, repr=False)
class SizedMask(Mask):
    """A mask that one length determines."""

    size: int
    positional = True

    def picture_shape(self) -> tuple[int, int]:
        # 256 is the most that a notebook's picture draws.
        side = min(max(32, 3 * self.size), 256)
        return side, side

    def __repr__(self) -> str:
        return f"{type(self).__name__.lower()}({self.size})"


@dataclass(frozen=True, repr=False)
class Window(SizedMask, stored=True):
    """A query sees the `size` latest keys, its own included, and `ahead` later ones (None: all)."""

    ahead: int | None = None
    translation_invariant = True

    def allowed(self, at: Grid) -> Tensor:
        near = at.k > at.q - self.size
        return near if self.ahead is None else near & (at.k <= at.q + self.ahead)

    def window_size(self) -> int | None:
        return self.size

    def band(self, T: int, S: int) -> Band | None:
        return Band(self.size - 1, self.ahead)

    def __repr__(self) -> str:
        return super().__repr__() if self.ahead is None else f"window({self.size}, ahead={self.ahead})"


@dataclass(frozen=True, repr=False)
class Prefix(SizedMask, stored=True):
    """Every query sees the first `size` keys."""

    def allowed(self, at: Grid) -> Tensor:
        return always(at.q) & (at.k < self.size)


@dataclass(frozen=True, repr=False)
class Chunks(SizedMask, stored=True):
    """A query sees the keys of its own chunk; positions are cut into chunks of `size`."""

    def __post_init__(self) -> None:
        check_whole_number("chunks(n)", self.size)

    def allowed(self, at: Grid) -> Tensor:
        return at.q // self.size == at.k // self.size


@dataclass(frozen=True, repr=False)
class Rectangle(Mask, stored=True):
    """The edges between the queries first_row … last_row and the keys first_key … last_key, by position."""

    first_row: int
    last_row: int
    first_key: int
    last_key: int

    def allowed(self, at: Grid) -> Tensor:
        rows = (at.q >= self.first_row) & (at.q <= self.last_row)
        return rows & (at.k >= self.first_key) & (at.k <= self.last_key)

    def __repr__(self) -> str:
        rows = f"queries {self.first_row} to {self.last_row}"
        return f"rectangle({rows}, keys {self.first_key} to {self.last_key})"


causal = Causal()
