"""`Rule`: a mask that asks a function of the user's about batch, head, query and key."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch.compiler import is_compiling

from regard.attention.masks.base import Index, Mask
from regard.attention.masks.grid import Grid
from regard.attention.masks.interval import Interval, Unknown

Predicate = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""A function of index tensors (b, h, q, k) that broadcast, which returns a boolean tensor."""


@dataclass(frozen=True, repr=False, eq=False)
class Rule(Mask):
    """A key is visible if a function of batch, head, query and key says so."""

    predicate: Predicate
    selections: tuple[tuple[Index, Index], ...] = ()
    """The sequences and heads that were selected, one selection after another."""
    asks_function = True

    def allowed(self, at: Grid) -> Tensor:
        b, h = at.b, at.h
        for batch, heads in reversed(self.selections):
            b, h = _original_numbers(b, batch), _original_numbers(h, heads)
        answer: Any = self.predicate(b, h, at.q, at.k)
        if isinstance(answer, Interval):  # of blocks
            return cast(Tensor, answer)
        if not isinstance(answer, Tensor) or answer.dtype != torch.bool:
            got = answer.dtype if isinstance(answer, Tensor) else type(answer).__name__
            raise ValueError(
                f"mask {self}: expected a boolean tensor from the predicate, got {got}: "
                "write it with comparisons and & | ~ (not and, or, not) on its arguments"
            )
        tile = (len(at.b), at.h.shape[1], at.q.shape[2], at.k.shape[3])
        shape = (1,) * (4 - answer.ndim) + tuple(answer.shape)
        if len(shape) > 4 or any(size not in (1, full) for size, full in zip(shape, tile, strict=True)):
            raise ValueError(
                f"mask {self}: expected an answer that broadcasts to {tile}, got {tuple(answer.shape)}"
            )
        return answer.view(shape)

    def select(self, batch: Index, heads: Index) -> Mask:
        if (_is_unchanged(batch) and _is_unchanged(heads)) or _reads_positions_only(self.predicate):
            return self
        # A list is no part of an identity (it may change), a tuple is.
        batch, heads = (x if isinstance(x, slice | Tensor) else tuple(x) for x in (batch, heads))
        return Rule(self.predicate, (*self.selections, (batch, heads)))

    def __repr__(self) -> str:
        name = getattr(self.predicate, "__name__", type(self.predicate).__name__)
        return f"rule({name.strip('<>')})"


def _original_numbers(numbers: Tensor, index: Index) -> Tensor:
    """The numbers that sequences or heads had before `index` selected some of them."""
    if not isinstance(index, slice):
        return torch.as_tensor(index, device=numbers.device)[numbers]
    step = 1 if index.step is None else index.step
    return (index.start or 0) + numbers * step


def _is_unchanged(index: Index) -> bool:
    """Whether sequences or heads have the same numbers after `index` selected some of them."""
    return isinstance(index, slice) and not index.start and index.step in (None, 1)


def _reads_positions_only(predicate: Predicate) -> bool:
    """Whether a predicate answers without a sequence and a head."""
    if is_compiling():
        return False
    unknown: Any = Unknown()
    zero = torch.zeros((), dtype=torch.long, device="cpu")  # which goes with tensors of any device
    try:
        predicate(unknown, unknown, zero, zero)
    except Exception:  # by `Unknown`, or by the user's function, which then counts as one that reads them
        return False
    return True
