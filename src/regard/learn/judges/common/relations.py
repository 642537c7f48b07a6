"""When two tensors are the same, and how a wrong one is related to the right one where no table knows it."""

from __future__ import annotations

import torch
from torch import Tensor

# A learner's sums are in float32 and in an order of their own. Against float64 that moves the output of a
# layer of width 32 by 7e-7, and the logits of the included model by 4e-6. tests/learn holds that every wrong
# way of the lessons is told from the right one.
TOLERANCE = 1e-4


def largest_difference(a: Tensor, b: Tensor) -> float:
    """Return the largest absolute difference of two tensors; infinite where one is not finite."""
    difference = (a.detach().double() - b.detach().double()).abs().max().item()
    # NaN is not equal to itself; a difference of NaN must not count as small.
    return difference if difference == difference else float("inf")


def is_equal(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors have one shape and the same numbers."""
    return a.shape == b.shape and largest_difference(a, b) < TOLERANCE


def describe_relation(answer: Tensor, right: Tensor) -> str:
    """Complete "`out` …": in what a tensor of numbers differs from the right one; "" if in no simple way.

    It is a multiple of the right one, or that one shifted by a row, or transposed, or only some rows of it
    are wrong. The rows are those of the last axis but one: tokens, in most of the lessons.

    >>> describe_relation(torch.tensor([2.0, 4.0]), torch.tensor([1.0, 2.0]))
    'is 2 times what it should be'
    >>> describe_relation(torch.tensor([[1.0], [2.0], [4.0]]), torch.tensor([[1.0], [2.0], [3.0]]))
    'is right in all rows but the last'
    """
    if answer.shape != right.shape or torch.bool in (answer.dtype, right.dtype):
        return ""
    a, b = answer.double(), right.double()
    if b.ndim > 1 and len(b) and _equal(b.sum(-1), torch.ones(())).all() and (said := _about_sums(a)):
        return said
    if b.ndim > 1 and (at := (a.isfinite() != b.isfinite()).nonzero()).numel():
        *_, row, column = place = at[0].tolist()
        return f"is {a[tuple(place)]:.3g} in row {row}, column {column}, and should be {b[tuple(place)]:.3g}"
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
    return _wrong_lines(a, b, "row") or _wrong_lines(a.mT, b.mT, "column")


def _about_sums(a: Tensor) -> str:
    """What is wrong with the sums of rows that should be 1; "" if nothing is."""
    if _equal(a.sum(-1), torch.ones(())).all() or not a.isfinite().all():
        return ""
    if _equal(a.sum(-2), torch.ones(())).all():
        return "has columns that sum to 1, and rows that do not"
    return f"has rows that do not sum to 1: the first sums to {a.sum(-1).flatten()[0]:.4g}"


def _wrong_lines(a: Tensor, b: Tensor, kind: str) -> str:
    """Which of the rows, or of the columns, are wrong; "" if most or all of them are."""
    lines = (~_equal(a, b)).movedim(-2, 0).flatten(1).any(-1).nonzero().flatten().tolist()
    last = b.shape[-2] - 1
    if not lines or len(lines) > last:
        return ""
    if len(lines) == last:
        (right,) = set(range(last + 1)) - set(lines)
        return {0: f"is right in the first {kind} only", last: f"is right in the last {kind} only"}.get(
            right, ""
        )
    zero = ", which holds nothing but 0" if (a[..., lines, :] == 0).all() else ""
    if len(lines) == 1:
        which = {0: "the first", last: "the last"}.get(lines[0], lines[0])
        return f"is right in all {kind}s but {which}{zero}"
    return f"is wrong in {kind}s {', '.join(map(str, lines))} only, counted from 0{zero}"


def _factor(a: Tensor, b: Tensor) -> float:
    """The number that all of b is multiplied by in a; 0 if there is none."""
    square = b.square().sum()
    factor = float((a * b).sum() / square) if square else 0.0
    return factor if _equal(a, factor * b).all() else 0.0


def _equal(a: Tensor, b: Tensor) -> Tensor:
    return (a - b).abs() < TOLERANCE * (1 + b.abs())
