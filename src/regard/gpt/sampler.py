"""How the next token is chosen from its scores: the best one, or a draw from the better ones."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from regard.attention.arguments import check_whole_number


@dataclass
class Sampling:
    """Greedy at temperature 0; otherwise a draw at that temperature.

    `top_k` draws from the k best only; `top_p` from the fewest best ones that together have probability p
    (after `top_k`, if both are given). The same `seed` draws the same; without one PyTorch's own state does.

    >>> Sampling(temperature=0.0).choose(torch.tensor([[0.1, 2.0, 0.3]]))
    tensor([1])
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None
    _generator: torch.Generator | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        t = self.temperature
        if isinstance(t, bool) or not isinstance(t, int | float) or not 0 <= t < math.inf:
            raise ValueError(f"temperature: expected 0 (greedy) or a number above it, got {t!r}")
        if self.top_k is not None:
            self.top_k = check_whole_number("top_k", self.top_k)
        p = self.top_p
        if p is not None and (isinstance(p, bool) or not isinstance(p, int | float) or not 0 < p <= 1):
            raise ValueError(f"top_p: expected a probability above 0 and up to 1, got {p!r}")
        if self.seed is not None:
            self.seed = check_whole_number("seed", self.seed, 0)

    def choose(self, logits: Tensor) -> Tensor:
        """One token (B,) for each row of logits (B, V)."""
        if self.temperature == 0:
            return logits.argmax(-1)
        scaled, tokens = logits.float() / self.temperature, None
        if self.top_k is not None and self.top_k < logits.shape[-1]:
            scaled, tokens = scaled.topk(self.top_k)  # (B, k), best first
        elif self.top_p is not None:
            scaled, tokens = scaled.sort(-1, descending=True)
        chances = scaled.softmax(-1)
        if self.top_p is not None:
            before = chances.cumsum(-1) - chances  # what the better ones have together
            chances = chances.masked_fill(before >= self.top_p, 0.0)
        drawn = chances.multinomial(1, generator=self._seeded(logits.device))  # (B, 1)
        return (drawn if tokens is None else tokens.gather(-1, drawn)).squeeze(-1)

    def _seeded(self, device: torch.device) -> torch.Generator | None:
        if self.seed is not None and self._generator is None:
            self._generator = torch.Generator(device).manual_seed(self.seed)
        return self._generator
