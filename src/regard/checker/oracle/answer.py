"""The answer to a question: the output of attention, and what else the code returned."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Answer(NamedTuple):
    """The result of attention. `free` marks rows (…, T, 1) for which any output is accepted."""

    output: Tensor
    weights: Tensor | None = None  # (B, H, T, S)
    lse: Tensor | None = None  # (B, H, T)
    free: Tensor | None = None
