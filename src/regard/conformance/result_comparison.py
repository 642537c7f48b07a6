"""The comparison of one result with the right answer, in the tolerance of the dtype that it is written in."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.checker.oracle.oracle import describe_difference, relative_difference
from regard.conformance.case_folder import GRADIENTS, TOLERANCES
from regard.conformance.cases import ConformanceCase

RESULTS = ("output", "lse", *GRADIENTS)
# What a result may be written in, and whose tolerance it has.
WRITTEN = {
    torch.float64: "float32",
    torch.float32: "float32",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
}


@dataclass(frozen=True)
class CaseVerdict:
    """How one result of one case compares: `error` is relative to the largest right number."""

    case: str
    result: str  # "output", "lse", "dq", "dk" or "dv"
    right: bool
    error: float
    problem: str = ""  # a wrong shape or dtype, in words
    numbers: str = ""  # what is odd about the numbers: zeros, NaN or inf
    dtype: str = "float32"  # that it was judged by: the coarser of the case's and the written one
    tolerance: float = 0.0  # the error below which it is right

    @property
    def name(self) -> str:
        """The name of the result in its file."""
        return f"{self.case}.{self.result}"

    def __str__(self) -> str:
        return f"{self.name}: {self.problem or self.numbers or describe_difference(self.error)}"


def compare_result(case: ConformanceCase, result: str, got: Tensor, right: Tensor) -> CaseVerdict:
    """Compare a result with the right answer."""
    problem = ""
    if not got.is_floating_point():
        problem = f"expected floating-point numbers, got {got.dtype}".replace("torch.", "")
    elif got.dtype not in WRITTEN:
        names = ", ".join(str(dtype) for dtype in WRITTEN)
        problem = f"expected one of {names}, got {got.dtype}".replace("torch.", "")
    elif got.shape != right.shape:
        problem = f"expected {tuple(right.shape)}, got {tuple(got.shape)}"
    if problem:
        return CaseVerdict(case.name, result, False, math.inf, problem)
    dtype = max(case.dtype, WRITTEN[got.dtype], key=TOLERANCES.__getitem__)
    # Gradients are sums of more terms than an output is.
    tolerance = TOLERANCES[dtype] * (5 if result in GRADIENTS else 1)
    got, right = got.double(), right.double()
    error = relative_difference(got, right)
    # NaN is no −∞; FlashAttention marks rows that see no key by +∞, which says the same.
    if bool((got.isnan() & ~right.isnan()).any()):
        error = math.inf
    if error < tolerance:
        return CaseVerdict(case.name, result, True, error, "", "", dtype, tolerance)
    return CaseVerdict(
        case.name, result, False, error, "", _describe_numbers(got, right, result), dtype, tolerance
    )


def _describe_numbers(got: Tensor, right: Tensor, result: str) -> str:
    """Return what is odd about the numbers of a wrong result; "" if nothing is."""
    count = got.numel()
    if not bool(got.any()):
        # A gradient of zeros is a mistake of its own.
        return "all zeros" if result in GRADIENTS else "all zeros: nothing was written"
    if nans := int((got.isnan() & ~right.isnan()).sum()):
        return f"NaN in {nans} of {count} numbers"
    if infinite := int((got.isinf() & right.isfinite()).sum()):
        return f"inf in {infinite} of {count} numbers"
    if finite := int((got.isfinite() & right.isinf()).sum()):
        return f"{finite} of {count} are numbers where −∞ is right: these queries see no key"
    return ""
