"""Test cases: random inputs whose sizes cannot be confused with one another.

Lengths, widths and head counts differ on purpose, so that a transposed axis raises an error or gives a wrong
number, and never passes by chance. Everything is drawn in float64 from fixed seeds.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from regard.checker.oracle.question import Question
from regard.checker.subject.subject import SEQUENCES, Subject


@dataclass(frozen=True)
class Cases:
    """Makes questions for one subject, in the layout and the widths that it takes."""

    subject: Subject
    width: int = 40  # C of (B, T, C), for queries
    context_width: int = 40  # C of (B, S, C), for keys and, unless `value_width` is given, values
    max_length: int | None = None
    always: dict[str, Any] = field(default_factory=dict)  # softcap, window, rule: part of the module itself
    value_width: int | None = None
    fixed_length: int | None = None  # the only length that it takes
    powers: bool = False  # widths of heads are powers of two, 16 at least, as many kernels want them
    multiple: int = 1  # lengths are multiples of this

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
        """Return a question without a mask; self-attention if the subject takes one sequence.

        `name` is for the report, the letters are sizes, `seed` draws the inputs and `size` scales them.
        """
        T = T if self.max_length is None else min(T, self.max_length)
        T = self.fixed_length or T
        S = T if S is None or self.fixed_length else S if self.max_length is None else min(S, self.max_length)
        T, S, D = self._kernel_sizes(T, S, D)
        layout, inputs = self.subject.layout, self.subject.inputs
        if layout in ("BCHW", "BHWC"):
            T = S = max(2, T - T % 2)  # images of more than one row
        D = self.subject.head_width or D
        draw = torch.Generator().manual_seed(seed)

        def normal(*shape: int) -> Tensor:
            return size * torch.randn(shape, generator=draw, dtype=torch.float64)

        if layout in SEQUENCES:
            B = 1 if layout == "TC" else B
            x = normal(B, T, self.width)
            if inputs == "x":
                q = k = v = x
            elif inputs == "context":
                q = x
                k = v = normal(B, S, self.context_width)
            else:
                k, v = (normal(B, S, C) for C in (self.context_width, self.value_width or self.context_width))
                q = x
        else:
            H = 1 if layout in ("BTD", "TBD", "TD") else H
            B = 1 if layout == "TD" else B
            G = H if G is None else min(G, H)
            q, k, v = normal(B, H, T, D), normal(B, G, S, D), normal(B, G, S, D if E is None else E)
        return replace(Question(name, q, k, v), **self.always)

    def _kernel_sizes(self, T: int, S: int, D: int) -> tuple[int, int, int]:
        """Return lengths and a width that the kernel takes."""
        kernel = self.subject.kernel_layout
        if kernel is not None and kernel.square:
            S = T
        T, S = (-(-n // self.multiple) * self.multiple for n in (T, S))
        if kernel is not None and kernel.one_query:
            T = 1
        # Triton's tl.dot takes no fewer than 16 columns.
        return T, S, max(16, 1 << (D - 1).bit_length()) if self.powers else D

    def longer(self, name: str = "longer sequence") -> Question:
        """Return a plain question on one longer sequence, in which windows and blocks show."""
        return self.plain(name, B=1, T=40, seed=92)

    def masked(self, name: str = "mask", seed: int = 0, **sizes: Any) -> Question:
        """Return a question with a random mask: every query sees its own position and some others."""
        question = self.plain(name, seed=seed, **sizes)
        T, S = question.q.shape[-2], question.k.shape[-2]
        draw = torch.Generator().manual_seed(seed + 1)
        mask = torch.rand(T, S, generator=draw) < 0.5
        # Every row and every column is used, and one earlier key of each query stays visible.
        eye = torch.eye(T, S, dtype=torch.bool)
        mask |= eye.roll(S - T, 1) | eye.roll(-1, 0)
        mask[-1, 0], mask[0, -1], mask[T // 2, 0] = True, False, False
        return replace(question, mask=mask)

    def padded(self, name: str = "padding", **sizes: Any) -> Question:
        """Return a question whose sequences end in padding."""
        question = self.plain(name, **sizes)
        B, S = question.k.shape[0], question.k.shape[-2]
        # A text without any token has no right output.
        lengths = torch.tensor([max(1, S - 2 * b - 1) for b in range(B)])
        return replace(question, padding=torch.arange(S) < lengths[:, None])

    def biased(self, name: str = "float mask", **sizes: Any) -> Question:
        """Return a question with finite numbers added to the scores."""
        question = self.plain(name, **sizes)
        T, S = question.q.shape[-2], question.k.shape[-2]
        draw = torch.Generator().manual_seed(5)
        return replace(question, bias=torch.randn(T, S, generator=draw, dtype=torch.float64))
