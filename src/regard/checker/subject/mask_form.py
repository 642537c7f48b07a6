"""How a subject's mask argument is written."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class MaskForm:
    """The convention that a subject's mask argument follows.

    `kind` is "look" (boolean, True = may look), "hide" (boolean, True = hidden), "added" (0 and −inf),
    "lowest" (0 and the lowest number, as Transformers passes it), "zero-one" (1.0 = may look) or "one-zero"
    (1.0 = hidden). `rank` is 1 for (B, S), a mask of tokens, 2 for (T, S), 3 for (B, T, S), 4 for
    (B, 1, T, S).
    """

    kind: str = "look"
    rank: int = 2

    def __str__(self) -> str:
        convention = {
            "look": "boolean, True = may look",
            "hide": "boolean, True = hidden",
            "added": "float, added to the scores",
            "lowest": "float, added to the scores, the lowest number hides",
            "zero-one": "float, 1 = may look, 0 = hidden",
            "one-zero": "float, 1 = hidden, 0 = may look",
        }[self.kind]
        return f"{convention}, {('', '(B, S)', '(T, S)', '(B, T, S)', '(B, 1, T, S)')[self.rank]}"

    def spread(self, mask: Tensor, batch: int) -> Tensor:
        """Return a mask or bias (T, S) or (B, 1, T, S) with as many dimensions as this convention has."""
        if mask.ndim == 4 and self.rank < 4:
            return mask[:, 0] if self.rank == 3 else mask[0, 0]
        if mask.ndim == 2 and self.rank > 2:
            return mask.expand(batch, 1, *mask.shape) if self.rank == 4 else mask.expand(batch, *mask.shape)
        return mask

    def encode(self, mask: Tensor, dtype: torch.dtype, batch: int) -> Tensor:
        """Encode a mask (T, S) or (B, 1, T, S), in which True means visible, in this convention.

        `dtype` is that of a float mask, `batch` the batch size.
        """
        mask = self.spread(mask, batch)
        if self.kind == "hide":
            return ~mask
        if self.kind in ("added", "lowest"):
            # The lowest number of float64 would become −inf in code that goes through float32.
            lowest = max(torch.finfo(dtype).min, torch.finfo(torch.float32).min)
            hidden = -torch.inf if self.kind == "added" else lowest
            return torch.zeros(mask.shape, dtype=dtype).masked_fill(~mask, hidden)
        if self.kind == "one-zero":
            return (~mask).to(dtype)
        return mask.to(dtype) if self.kind == "zero-one" else mask
