"""How a wrong tensor is related to the right one, where no table knows it: what a learner can look for."""

from __future__ import annotations

import torch
from torch import Tensor

TOLERANCE = 1e-4


def describe_relation(answer: Tensor, right: Tensor) -> str:
    """Complete "`out` …": in what a tensor of numbers differs from the right one; "" if in no simple way.

    It is a multiple of the right one, or that one shifted by a row, or transposed, or only some rows of it
    are wrong. The rows are those of the last axis but one: tokens, in most of the lessons.

    >>> describe_relation(torch.tensor([2.0, 4.0]), torch.tensor([1.0, 2.0]))
    'is 2 times what it should be'
    >>> describe_relation(torch.tensor([[1.0], [2.0], [0.0]]), torch.tensor([[1.0], [2.0], [3.0]]))
    'is right in all rows but the last'
    """
    if answer.shape != right.shape or torch.bool in (answer.dtype, right.dtype):
        return ""
    a, b = answer.double(), right.double()
    if a.isfinite().all() and (factor := _factor(a, b)):
        return f"is {factor:.4g} times what it should be"
    if b.ndim < 2 or b.shape[-2] < 3:
        return ""
    for first, second, said in (
        (a[..., 1:, :], b[..., :-1, :], "holds in each row what belongs in the row before"),
        (a[..., :-1, :], b[..., 1:, :], "holds in each row what belongs in the row after"),
        (a, b.flip(-2), "has the right rows in the opposite order"),
        (a, b.mT, "has rows for columns and columns for rows"),
    ):
        if first.shape == second.shape and _equal(first, second).all():
            return said
    wrong = ~_equal(a, b).movedim(-2, 0).flatten(1).all(-1)  # one for each row
    rows = wrong.nonzero().flatten().tolist()
    last = b.shape[-2] - 1
    if len(rows) == 1:
        return f"is right in all rows but {({0: 'the first', last: 'the last'}).get(rows[0], rows[0])}"
    if wrong.all() or len(rows) == last:
        return ""
    return f"is wrong in rows {', '.join(map(str, rows))} only, counted from 0"


def _factor(a: Tensor, b: Tensor) -> float:
    """The number that all of b is multiplied by in a; 0 if there is none."""
    square = b.square().sum()
    factor = float((a * b).sum() / square) if square else 0.0
    return factor if _equal(a, factor * b).all() else 0.0


def _equal(a: Tensor, b: Tensor) -> Tensor:
    return (a - b).abs() < TOLERANCE * (1 + b.abs())
