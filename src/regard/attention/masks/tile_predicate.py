"""`TilePredicate`: whether a key is visible to a query, answered for any tile and for whole blocks.

A subclass says once what is visible, in `allowed`, an expression of positions. The T×S matrix is never built.
"""

from __future__ import annotations

import contextlib
from typing import Any, Literal, cast

import torch
from torch import Tensor

from regard.attention.masks.grid import Blocks, Grid, Span, always, full_shape, grid
from regard.attention.masks.interval import Interval


class TilePredicate:
    """What a mask answers about tiles and blocks; `allowed` is its own, the rest follows from it."""

    def tile(
        self,
        rows: Span,
        cols: Span,
        shape: tuple[int, ...] | None = None,
        *,
        device: torch.device | str = "cpu",
    ) -> Tensor:
        """Visibility in a tile: boolean (rows, cols), or (B, H, rows, cols) if it varies with batch or head.

        `rows` and `cols` are slices, ranges or 1-D tensors of indices. `shape` is the attention's (T, S) or
        (B, H, T, S); without it query i stands at position i. `device` is where the result is made.

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
        device: torch.device | str = "cpu",
    ) -> Tensor | None:
        """The numbers added to the scores of a tile, or None if the mask adds none.

        `rows`, `cols`, `shape` and `device`, and the shape of the result, are as in `tile`.
        """
        self.check(shape)
        at = grid(rows, cols, shape, device)
        bias = self.score_bias(at)
        return None if bias is None else _spread(bias, at)

    def covers(
        self, rows: Span, cols: Span, shape: tuple[int, ...] | None = None
    ) -> Literal["empty", "part", "full"]:
        """Whether nothing, something or everything in a tile is visible; `rows`, `cols`, `shape` as in
        `tile`.

        >>> from regard import causal
        >>> [causal.covers(range(4, 8), cols) for cols in (range(0, 4), range(4, 8), range(8, 12))]
        ['full', 'part', 'empty']
        """
        tile = self.tile(rows, cols, shape)
        if not bool(tile.any()):
            return "empty"
        return "full" if bool(tile.all()) else "part"

    def to_dense(self, T: int, S: int | None = None) -> Tensor:
        """The mask of T queries and S keys (T if None) as a boolean tensor, (T, S) or (B, H, T, S)."""
        S = T if S is None else S
        return self.tile(range(T), range(S), (T, S))

    def check(self, shape: tuple[int, ...] | None) -> None:
        """Raise ValueError if the mask does not fit attention of this shape, (T, S) or (B, H, T, S)."""
        if shape is None:
            return
        _, _, T, S = full_shape(shape)
        B, H = shape[:2] if len(shape) == 4 else (None, None)
        if (reason := self.shape_error(B, H, T, S)) is not None:
            raise ValueError(f"mask {self}: {reason}")

    def allowed(self, at: Grid) -> Tensor:
        """Whether each query sees each key of the tile `at`: boolean, broadcastable to (B, H, rows, cols).

        An answer by arithmetic, comparisons and `& | ~` on `at.q` and `at.k` serves `block_bounds` as well. A
        mask that holds other masks asks their `evaluate`.
        """
        raise NotImplementedError

    def score_bias(self, at: Grid) -> Tensor | None:
        """The numbers added to the scores of the tile `at`, broadcastable to (B, H, rows, cols), or None."""
        return None

    def shape_error(self, B: int | None, H: int | None, T: int, S: int) -> str | None:
        """Why this mask does not fit (B, H, T, S), where B or H may be None for any, or None if it fits."""
        return None

    def evaluate(self, at: Grid) -> Tensor:
        """What is `allowed` in the tile `at`, or in blocks: an interval of truth values for each of them."""
        k: Any = at.k
        if not isinstance(k, Interval):
            return self.allowed(at)
        answer: Any = None
        # A mask that cannot compute with intervals, as one that asks a tensor or a function of PyTorch, is
        # asked about each entry instead, where its errors show.
        with contextlib.suppress(Exception):
            answer = self.allowed(at)
        if not isinstance(answer, Interval) or answer.least.dtype != torch.bool:
            true = always(k.least)
            answer = Interval(~true, true)
        return cast(Tensor, answer)

    def block_bounds(self, blocks: Blocks) -> tuple[Tensor, Tensor]:
        """For each of the `blocks`: whether anything in it may be visible, and whether everything in it is.

        A mask that cannot tell without looking at each entry answers (True, False), which is always safe.
        """
        bounds: Any = self.evaluate(blocks.grid())
        return bounds.most, bounds.least


def _spread(answer: Tensor, at: Grid) -> Tensor:
    """An answer as (rows, cols), or as (B, H, rows, cols) where it varies with batch or head."""
    answer = answer.expand(*answer.shape[:-2], at.q.shape[-2], at.k.shape[-1])
    return answer[0, 0] if answer.shape[:-2] == (1, 1) else answer
