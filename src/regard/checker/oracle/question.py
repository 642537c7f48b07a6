"""One question put to an implementation: inputs, and what is asked of their attention.

The inputs are (B, H, T, D) for functions on split heads and (B, T, C) for what splits its heads itself. A
mask says True = may look, whatever the code under test wants to hear: how to say it to whom is in `subject`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from regard.attention.masks.base import Mask


@dataclass(frozen=True)
class Question:
    """Attention of `q` on `k` and `v`, with a name for the report."""

    name: str
    q: Tensor
    k: Tensor
    v: Tensor
    causal: bool = False  # is the right answer causal
    mask: Tensor | None = None  # boolean (T, S) or (B, 1, T, S)
    padding: Tensor | None = None  # boolean (B, S), True = a real token
    bias: Tensor | None = None  # float (T, S), added to the scaled scores
    window: int | None = None
    softcap: float | None = None
    rule: Mask | None = None  # a rule that the module holds itself
    flag: bool | None = None  # what the code's own causal switch is set to; None leaves it alone

    @property
    def own(self) -> bool:
        """Self-attention: queries, keys and values come from one sequence."""
        return self.q is self.k

    @property
    def dtype(self) -> torch.dtype:
        return self.q.dtype

    def to(self, dtype: torch.dtype) -> Question:
        return self.mapped(lambda x: x.to(dtype))

    def mapped(self, change: Callable[[Tensor], Tensor]) -> Question:
        """The same question with its inputs changed; one sequence stays one sequence."""
        q = change(self.q)
        k = q if self.k is self.q else change(self.k)
        v = q if self.v is self.q else k if self.v is self.k else change(self.v)
        return replace(self, q=q, k=k, v=v)

    def shapes(self) -> str:
        """The shapes of the inputs, for a reader."""
        if self.own:
            return f"x {tuple(self.q.shape)}"
        return f"q {tuple(self.q.shape)}, k {tuple(self.k.shape)}, v {tuple(self.v.shape)}"
