"""When two tensors of numbers are the same: one tolerance for every judge, and why it is that."""

from __future__ import annotations

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
