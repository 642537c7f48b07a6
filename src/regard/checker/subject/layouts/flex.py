"""The functions that FlexAttention takes: `mask_mod(b, h, q_idx, kv_idx)` and `score_mod(score, b, h, …)`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from regard.checker.oracle.answer import Answer
from regard.checker.oracle.question import Question
from regard.checker.subject.layouts.layout import KernelLayout, to_device
from regard.checker.subject.layouts.transformers import attend_with_mask


@dataclass(frozen=True)
class ModLayout(KernelLayout):
    """A function of the places in the matrix, run on all of them. The attention is the checker's own."""

    scores: bool = False  # it takes the score first, and returns the new one
    makes_mask: ClassVar[bool] = True

    @property
    def kind(self) -> str:
        return "mod"

    @property
    def square(self) -> bool:
        """Always: where the queries start is not a mod's to say."""
        return True

    @property
    def description(self) -> str:
        return "those of a FlexAttention " + ("score_mod" if self.scores else "mask_mod")

    def encode(self, question: Question) -> dict[str, Any]:
        raise NotImplementedError

    def decode(self, tensors: list[Tensor], question: Question) -> Answer:
        raise NotImplementedError

    def run(
        self, target: Callable[..., Any], question: Question, options: dict[str, Any], device: str
    ) -> Answer:
        """Run the mod on every place, and attend with the mask or the scores that it gives."""
        q, k, v = question.q, question.k, question.v
        k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
        places = [torch.arange(n, device=device) for n in (*q.shape[:3], k.shape[2])]
        if not self.scores:
            mask = _everywhere(target, 0)(*places)
            if mask.dtype != torch.bool:
                raise RuntimeError(f"a mask_mod returns booleans, and this one returned {mask.dtype}")
            return attend_with_mask(question, mask.cpu())
        scores = (q @ k.mT) * q.shape[-1] ** -0.5  # (B, H, T, S)
        changed = to_device(_everywhere(target, 1)(scores.to(device), *places), "cpu")
        weights = torch.softmax(changed, -1)
        return Answer(weights @ v.repeat_interleave(q.shape[1] // v.shape[1], 1), None, None)


def _everywhere(mod: Callable[..., Any], first: int) -> Callable[..., Tensor]:
    """Return the mod for all places at once; `first` is 1 if a score comes first."""
    for axis in range(4):  # innermost is the key
        places = tuple(0 if i == 3 - axis else None for i in range(4))
        mod = torch.vmap(mod, in_dims=((0,) * first) + places)
    return mod
