"""The numbers of cases, which depend on a seed and on the name of the case alone.

Every number of q, k and v is a multiple of 1/32 between -2 and 2, which float16 and bfloat16 hold exactly:
an implementation in any precision gets the same numbers, and its error is its own.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from regard.checker.oracle.question import Question
from regard.conformance.cases import NumberStream

LARGE = 24.0  # what queries are multiplied by, so that exponentials of scores overflow float32
HEADS, TOKENS = 4, 7


class CaseDraw:
    """Draws the numbers of cases, which depend on the seed and on the name of the case alone."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def ask(self, name: str, *, B: int = 2, H: int = HEADS, G: int | None = None, T: int = TOKENS,
            S: int | None = None, D: int = 10, E: int = 6, **fields: Any) -> Question:  # fmt: skip
        """Return a question with inputs of these sizes; `fields` are further ones of `Question`."""
        stream = NumberStream(f"{self.seed} {name}")
        keys = T if S is None else S
        q, k, v = (
            stream.draw(B, heads, length, width)
            for heads, length, width in ((H, T, D), (G or H, keys, D), (G or H, keys, E))
        )
        return replace(Question(name, q, k, v), flag=bool(fields.get("causal")), **fields)

    def packed(self, name: str, queries: tuple[int, ...], keys: tuple[int, ...], **fields: Any) -> Question:
        """Return a question of sequences that stand one after the other."""
        sizes = {"B": len(queries), "T": max(queries), "S": max(keys)} | fields
        return self.ask(name, **sizes, lengths=(queries, keys), layout="packed")

    def visible(self, name: str, *shape: int) -> Tensor:
        """Return a mask in which every query sees the first key, and six of ten others."""
        draw = random.Random(f"{self.seed} {name} mask")
        mask = torch.tensor(
            [draw.random() < 0.6 for _ in range(torch.Size(shape).numel())], device="cpu"
        ).view(shape)
        mask[..., 0] = True  # no row is empty
        return mask

    def numbers(self, name: str, *shape: int) -> Tensor:
        """Return numbers for a bias or for sink logits."""
        return NumberStream(f"{self.seed} {name} numbers").draw(*shape)


def padding_mask(S: int, *places: tuple[int, int]) -> Tensor:
    """Return a padding mask of S keys: each item has tokens from a first place to before a last one."""
    keys = torch.arange(S, device="cpu")
    return torch.stack([(keys >= start) & (keys < end) for start, end in places])
