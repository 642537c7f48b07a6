"""The Triton path."""

from __future__ import annotations

from torch import Tensor

from regard.attention.problem import Problem


def refuses(problem: Problem) -> str | None:
    return "needs a CUDA device"


def run(problem: Problem) -> tuple[Tensor, Tensor]:
    raise ValueError("needs a CUDA device")
