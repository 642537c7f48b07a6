"""`Sampler`: chooses the next token from its logits, greedily or at random."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from regard.attention.arguments import check_whole_number


@dataclass
class Sampler:
    """Greedy at temperature 0; otherwise a random draw from softmax(logits / temperature).

    - `top_k` draws from the k most likely tokens only.
    - `top_p` draws from the smallest set of most likely tokens whose probabilities sum to p (after `top_k`).
    - `seed` makes the draws reproducible; without one PyTorch's global generator is used.

    >>> Sampler(temperature=0.0).sample(torch.tensor([[0.1, 2.0, 0.3]]))
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
            raise ValueError(f"temperature: expected 0 (greedy) or a number above 0, got {t!r}")
        if self.top_k is not None:
            self.top_k = check_whole_number("top_k", self.top_k)
        p = self.top_p
        if p is not None and (isinstance(p, bool) or not isinstance(p, int | float) or not 0 < p <= 1):
            raise ValueError(f"top_p: expected a probability above 0 and up to 1, got {p!r}")
        if self.seed is not None:
            self.seed = check_whole_number("seed", self.seed, 0)

    def sample(self, logits: Tensor) -> Tensor:
        """One token (B,) for each row of logits (B, V)."""
        if self.temperature == 0:
            return logits.argmax(-1)
        # float: the cumulative sums of top_p need more digits than half precision has.
        scaled, tokens = logits.float() / self.temperature, None
        if self.top_k is not None and self.top_k < logits.shape[-1]:
            scaled, tokens = scaled.topk(self.top_k)  # (B, k), most likely first
        # topk has sorted them already.
        elif self.top_p is not None:
            scaled, tokens = scaled.sort(-1, descending=True)
        probabilities = scaled.softmax(-1)
        if self.top_p is not None:
            before = probabilities.cumsum(-1) - probabilities  # the sum over more likely tokens
            # `before`, so that the token that crosses p stays in, and the most likely one always does.
            probabilities = probabilities.masked_fill(before >= self.top_p, 0.0)
        index = probabilities.multinomial(1, generator=self._seeded_generator(logits.device))  # (B, 1)
        return (index if tokens is None else tokens.gather(-1, index)).squeeze(-1)

    def _seeded_generator(self, device: torch.device) -> torch.Generator | None:
        if self.seed is not None and self._generator is None:
            # On the device of the logits, as multinomial requires of its generator.
            self._generator = torch.Generator(device).manual_seed(self.seed)
        return self._generator
