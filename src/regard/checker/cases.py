"""The questions that are put: random inputs of sizes that cannot be mistaken for one another.

Lengths, widths and head counts differ on purpose, so that a transposed axis shows as an error or a wrong
number and never passes by chance. Everything is drawn in float64 from fixed seeds.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from regard.checker.oracle.question import Question
from regard.checker.subject.subject import Subject


@dataclass(frozen=True)
class Cases:
    """Questions for one subject: its form, the widths it takes, and what it always promises."""

    subject: Subject
    width: int = 40  # C of (B, T, C), for queries
    context_width: int = 40
    longest: int | None = None
    always: dict[str, Any] = field(default_factory=dict)  # softcap, window, rule: held by the module itself

    def plain(
        self,
        name: str = "output",
        *,
        B: int = 2,
        T: int = 7,
        S: int | None = None,
        H: int = 4,
        G: int | None = None,
        D: int = 10,
        E: int | None = None,
        seed: int = 0,
        size: float = 1.0,
    ) -> Question:
        """Attention without a mask; self-attention where the subject takes one sequence."""
        T = T if self.longest is None else min(T, self.longest)
        S = T if S is None else S if self.longest is None else min(S, self.longest)
        form, takes = self.subject.form, self.subject.takes
        draw = torch.Generator().manual_seed(seed)

        def normal(*shape: int) -> Tensor:
            return size * torch.randn(shape, generator=draw, dtype=torch.float64)

        if form in ("BTC", "TBC", "TC"):
            B = 1 if form == "TC" else B
            x = normal(B, T, self.width)
            if takes == "x":
                q = k = v = x
            elif takes == "context":
                q = x
                k = v = normal(B, S, self.context_width)
            else:
                q, k, v = x, normal(B, S, self.context_width), normal(B, S, self.context_width)
        else:
            H = 1 if form in ("BTD", "TD") else H
            B = 1 if form == "TD" else B
            G = H if G is None else min(G, H)
            q, k, v = normal(B, H, T, D), normal(B, G, S, D), normal(B, G, S, D if E is None else E)
        return replace(Question(name, q, k, v), **self.always)

    def masked(self, name: str = "mask", seed: int = 0, **sizes: Any) -> Question:
        """With a random mask in which every query may look at its own position and at some others."""
        question = self.plain(name, seed=seed, **sizes)
        T, S = question.q.shape[-2], question.k.shape[-2]
        draw = torch.Generator().manual_seed(seed + 1)
        mask = torch.rand(T, S, generator=draw) < 0.5
        # Every row and every column is used, and one earlier key of each query stays visible.
        mask |= torch.eye(T, S, dtype=torch.bool).roll(S - T, 1) | torch.eye(T, S, dtype=torch.bool).roll(
            -1, 0
        )
        mask[-1, 0], mask[0, -1], mask[T // 2, 0] = True, False, False
        return replace(question, mask=mask)

    def padded(self, name: str = "padding", **sizes: Any) -> Question:
        """A batch in which the last tokens of some sequences are padding."""
        question = self.plain(name, **sizes)
        B, S = question.k.shape[0], question.k.shape[-2]
        lengths = torch.tensor([max(1, S - 2 * b - 1) for b in range(B)])
        return replace(question, padding=torch.arange(S) < lengths[:, None])

    def biased(self, name: str = "float mask", **sizes: Any) -> Question:
        """With finite numbers added to the scores."""
        question = self.plain(name, **sizes)
        T, S = question.q.shape[-2], question.k.shape[-2]
        draw = torch.Generator().manual_seed(5)
        return replace(question, bias=torch.randn(T, S, generator=draw, dtype=torch.float64))
