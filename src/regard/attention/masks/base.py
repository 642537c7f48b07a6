"""What a mask rule is, how it answers for a tile, and how rules combine with `&`, `|` and `~`.

A rule answers for any tile of the T×S matrix, so the matrix itself is never built, and it can say of a whole
block at once whether nothing or everything in it is allowed.

Positions come from `grids`; the rules by name (`causal`, `window`, …) are in `masks`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from regard.attention.masks.grid import Blocks as Blocks
from regard.attention.masks.grid import Grid as Grid
from regard.attention.masks.grid import Span, full_shape, one_block
from regard.attention.masks.grid import grid as grid


class Mask:
    """A rule that says, for a query and a key, whether the one may look at the other.

    Some rules also add a number to the score (`dense` of a float tensor, `alibi`): those are `biased`.
    """

    biased: bool = False
    trainable: bool = False  # what it adds to the scores wants a gradient

    def allowed(self, at: Grid) -> Tensor:
        """May the query look at the key? Boolean, broadcastable to (B, H, rows, cols)."""
        raise NotImplementedError

    def block_bounds(self, blocks: Blocks) -> tuple[Tensor, Tensor]:
        """For each block: may anything in it be allowed; is everything in it allowed.

        A rule that cannot tell without looking at each entry answers (yes, no): always safe.
        """
        table = blocks.q_first == blocks.q_first  # (R, 1), all true, wherever the queries stand
        return table, ~table

    def score_bias(self, at: Grid) -> Tensor | None:
        """What is added to the scores, broadcastable to (B, H, rows, cols), or None."""
        return None

    def shape_error(self, B: int | None, H: int | None, T: int, S: int) -> str | None:
        """Why this rule cannot serve attention of this shape (B, H None: any), or None if it can."""
        return None

    def select(self, batch: slice, heads: slice) -> Mask:
        """The rule for some sequences of the batch and some heads only, numbered from 0 again."""
        return self

    def simplified(self, shape: tuple[int, ...]) -> Mask:
        """The same rule for attention of this shape, without the parts that allow everything there."""
        some_every = self.block_bounds(one_block(*full_shape(shape)[2:]))
        return full if not self.biased and bool(some_every[1].all()) else self

    def tile(
        self,
        rows: Span,
        cols: Span,
        shape: tuple[int, ...] | None = None,
        *,
        device: torch.device | None = None,
    ) -> Tensor:
        """The rule for a tile: boolean (rows, cols), or (B, H, rows, cols) if it varies with batch or head.

        `shape` is the attention's (T, S) or (B, H, T, S); without it query i stands at position i.

        >>> from regard import causal
        >>> causal.tile(range(2), range(3))
        tensor([[ True, False, False],
                [ True,  True, False]])
        >>> causal.tile(range(2), range(3), shape=(2, 3))
        tensor([[ True,  True, False],
                [ True,  True,  True]])
        """
        self.check(shape)
        at = grid(rows, cols, shape, device)
        return _spread(self.allowed(at), at)

    def bias(
        self,
        rows: Span,
        cols: Span,
        shape: tuple[int, ...] | None = None,
        *,
        device: torch.device | None = None,
    ) -> Tensor | None:
        """What the rule adds to the scores of a tile, shaped as `tile` is; None if it adds nothing."""
        self.check(shape)
        at = grid(rows, cols, shape, device)
        added = self.score_bias(at)
        return None if added is None else _spread(added, at)

    def covers(
        self, rows: Span, cols: Span, shape: tuple[int, ...] | None = None
    ) -> Literal["empty", "part", "full"]:
        """Whether a tile allows nothing, something or everything.

        >>> from regard import causal
        >>> [causal.covers(range(4, 8), cols) for cols in (range(0, 4), range(4, 8), range(8, 12))]
        ['full', 'part', 'empty']
        """
        tile = self.tile(rows, cols, shape)
        if not bool(tile.any()):
            return "empty"
        return "full" if bool(tile.all()) else "part"

    def to_dense(self, T: int, S: int | None = None) -> Tensor:
        """The whole rule as a boolean tensor, (T, S) or (B, H, T, S): for small sizes and for looking at."""
        S = T if S is None else S
        return self.tile(range(T), range(S), (T, S))

    def plot(self, T: int, S: int | None = None, *, ax: Any = None) -> Any:
        """A picture of the rule for T queries and S keys; returns the Matplotlib figure."""
        from regard.attention.masks.plot import draw_mask

        return draw_mask(self, T, T if S is None else S, ax=ax)

    def check(self, shape: tuple[int, ...] | None) -> None:
        """Raise ValueError if the rule does not fit attention of this shape."""
        if shape is None:
            return
        _, _, T, S = full_shape(shape)
        B, H = shape[:2] if len(shape) == 4 else (None, None)
        if (why := self.shape_error(B, H, T, S)) is not None:
            raise ValueError(f"mask {self}: {why}")

    def __and__(self, other: Mask) -> Mask:
        return And(self, _operand(other, "&"))

    def __or__(self, other: Mask) -> Mask:
        return Or(self, _operand(other, "|"))

    def __invert__(self) -> Mask:
        return Not(self)


def _spread(answer: Tensor, at: Grid) -> Tensor:
    """A rule's answer as (rows, cols), or (B, H, rows, cols) where it varies with batch or head."""
    answer = answer.expand(*answer.shape[:-2], at.q.shape[-2], at.k.shape[-1])
    return answer[0, 0] if answer.shape[:-2] == (1, 1) else answer


def _operand(other: Mask, sign: str) -> Mask:
    if not isinstance(other, Mask):
        raise ValueError(
            f"{sign} joins two masks, got {type(other).__name__}: wrap a tensor in regard.tensor_mask(tensor)"
        )
    return other


@dataclass(frozen=True, repr=False)
class And(Mask):
    left: Mask
    right: Mask

    @property
    def biased(self) -> bool:  # type: ignore[override]
        return self.left.biased or self.right.biased

    @property
    def trainable(self) -> bool:  # type: ignore[override]
        return self.left.trainable or self.right.trainable

    def allowed(self, at: Grid) -> Tensor:
        return self.left.allowed(at) & self.right.allowed(at)

    def block_bounds(self, blocks: Blocks) -> tuple[Tensor, Tensor]:
        (some, every), (some2, every2) = self.left.block_bounds(blocks), self.right.block_bounds(blocks)
        return some & some2, every & every2

    def score_bias(self, at: Grid) -> Tensor | None:
        left, right = self.left.score_bias(at), self.right.score_bias(at)
        return right if left is None else left if right is None else left.double() + right

    def select(self, batch: slice, heads: slice) -> Mask:
        left, right = self.left.select(batch, heads), self.right.select(batch, heads)
        return self if left is self.left and right is self.right else And(left, right)

    def shape_error(self, B: int | None, H: int | None, T: int, S: int) -> str | None:
        return self.left.shape_error(B, H, T, S) or self.right.shape_error(B, H, T, S)

    def simplified(self, shape: tuple[int, ...]) -> Mask:
        left, right = self.left.simplified(shape), self.right.simplified(shape)
        return right if left is full else left if right is full else And(left, right)

    def __repr__(self) -> str:
        return " & ".join(f"({m})" if isinstance(m, Or) else str(m) for m in (self.left, self.right))


@dataclass(frozen=True, repr=False)
class Or(Mask):
    left: Mask
    right: Mask

    def __post_init__(self) -> None:
        _yes_or_no(self.left, "|")
        _yes_or_no(self.right, "|")

    def allowed(self, at: Grid) -> Tensor:
        return self.left.allowed(at) | self.right.allowed(at)

    def block_bounds(self, blocks: Blocks) -> tuple[Tensor, Tensor]:
        (some, every), (some2, every2) = self.left.block_bounds(blocks), self.right.block_bounds(blocks)
        return some | some2, every | every2

    def select(self, batch: slice, heads: slice) -> Mask:
        left, right = self.left.select(batch, heads), self.right.select(batch, heads)
        return self if left is self.left and right is self.right else Or(left, right)

    def shape_error(self, B: int | None, H: int | None, T: int, S: int) -> str | None:
        return self.left.shape_error(B, H, T, S) or self.right.shape_error(B, H, T, S)

    def __repr__(self) -> str:
        return f"{self.left} | {self.right}"


@dataclass(frozen=True, repr=False)
class Not(Mask):
    inner: Mask

    def __post_init__(self) -> None:
        _yes_or_no(self.inner, "~")

    def allowed(self, at: Grid) -> Tensor:
        return ~self.inner.allowed(at)

    def block_bounds(self, blocks: Blocks) -> tuple[Tensor, Tensor]:
        some, every = self.inner.block_bounds(blocks)
        return ~every, ~some

    def select(self, batch: slice, heads: slice) -> Mask:
        inner = self.inner.select(batch, heads)
        return self if inner is self.inner else Not(inner)

    def shape_error(self, B: int | None, H: int | None, T: int, S: int) -> str | None:
        return self.inner.shape_error(B, H, T, S)

    def __repr__(self) -> str:
        return f"~({self.inner})" if isinstance(self.inner, And | Or) else f"~{self.inner}"


def _yes_or_no(mask: Mask, sign: str) -> None:
    if mask.biased:
        raise ValueError(
            f"{sign} needs rules that say yes or no, but {mask} adds numbers to the scores: join it with &"
        )


@dataclass(frozen=True, repr=False)
class MaskPart(Mask):
    """Another rule, asked about some of its queries or keys only, numbered from 0 again."""

    inner: Mask

    @property
    def biased(self) -> bool:  # type: ignore[override]
        return self.inner.biased

    @property
    def trainable(self) -> bool:  # type: ignore[override]
        return self.inner.trainable

    def _moved(self, at: Grid) -> Grid:
        """The tile where it lies among all."""
        raise NotImplementedError

    def allowed(self, at: Grid) -> Tensor:
        return self.inner.allowed(self._moved(at))

    def score_bias(self, at: Grid) -> Tensor | None:
        return self.inner.score_bias(self._moved(at))


def _further(span: slice | Tensor, steps: int) -> slice | Tensor:
    return slice(span.start + steps, span.stop + steps) if isinstance(span, slice) else span + steps


@dataclass(frozen=True, repr=False)
class Rows(MaskPart):
    """Another rule's rows from `first` on, out of its `T`: what is left when only some queries are kept."""

    first: int
    T: int

    def _shift(self, at: Grid | Blocks) -> int:
        """How far the positions move: query i of these stands at i + first + S − T."""
        return self.first + at.T - self.T

    def _moved(self, at: Grid) -> Grid:
        return at._replace(q=at.q + self._shift(at), rows=_further(at.rows, self.first), T=self.T)

    def block_bounds(self, blocks: Blocks) -> tuple[Tensor, Tensor]:
        shift = self._shift(blocks)
        moved = blocks._replace(q_first=blocks.q_first + shift, q_last=blocks.q_last + shift, T=self.T)
        return self.inner.block_bounds(moved)

    def select(self, batch: slice, heads: slice) -> Mask:
        return Rows(self.inner.select(batch, heads), self.first, self.T)

    def shape_error(self, B: int | None, H: int | None, T: int, S: int) -> str | None:
        if self.first + T > self.T:
            return f"expected at most {self.T - self.first} queries, got {T}"
        return self.inner.shape_error(B, H, self.T, S)

    def __repr__(self) -> str:
        return f"rows of {self.inner}"


@dataclass(frozen=True, repr=False)
class Keys(MaskPart):
    """Another rule's keys from `first` on, out of its `S`: what is left when only some keys are looked at."""

    first: int
    S: int

    def _moved(self, at: Grid) -> Grid:
        cols = _further(at.cols, self.first)
        return at._replace(q=at.q + self.S - at.S, k=at.k + self.first, cols=cols, S=self.S)

    def block_bounds(self, blocks: Blocks) -> tuple[Tensor, Tensor]:
        q_first, q_last = (edge + self.S - blocks.S for edge in (blocks.q_first, blocks.q_last))
        k_first, k_last = (edge + self.first for edge in (blocks.k_first, blocks.k_last))
        return self.inner.block_bounds(Blocks(q_first, q_last, k_first, k_last, blocks.T, self.S))

    def select(self, batch: slice, heads: slice) -> Mask:
        return Keys(self.inner.select(batch, heads), self.first, self.S)

    def shape_error(self, B: int | None, H: int | None, T: int, S: int) -> str | None:
        if self.first + S > self.S:
            return f"expected at most {self.S - self.first} keys, got {S}"
        return self.inner.shape_error(B, H, T, self.S)

    def __repr__(self) -> str:
        return f"keys of {self.inner}"


@dataclass(frozen=True, repr=False)
class Full(Mask):
    """Everyone may look at everyone."""

    def allowed(self, at: Grid) -> Tensor:
        return (at.q >= at.q) & (at.k >= at.k)

    def block_bounds(self, blocks: Blocks) -> tuple[Tensor, Tensor]:
        table = (blocks.q_first >= blocks.q_first) & (blocks.k_first >= blocks.k_first)
        return table, table

    def __repr__(self) -> str:
        return "full"


full = Full()
