"""Rotary positions: each pair of a head's numbers is turned by an angle that grows with the position.

The product of a turned query and a turned key depends on their distance only. This file knows the angles and
the two ways of pairing; what stands at which position is the caller's business.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from regard.attention.arguments import check_positive, check_whole_number
from regard.attention.inputs import working_dtype


class Llama3Scaling(NamedTuple):
    """How Llama 3.1 stretches a context: slow pairs turn `factor` times slower, fast ones stay as they are.

    Between `low` and `high` turns within the original length, the two are blended.
    """

    factor: float = 8.0
    low: float = 1.0
    high: float = 4.0
    original_length: int = 8192

    def scaled(self, frequencies: Tensor) -> Tensor:
        turns = self.original_length * frequencies / (2 * math.pi)  # within the original length
        kept = ((turns - self.low) / (self.high - self.low)).clamp(0, 1)
        return frequencies * (kept + (1 - kept) / self.factor)


class Rotary(nn.Module):
    """Turns the first `width` numbers of every head; the rest pass as they are.

    `interleaved` pairs neighbours (0 1)(2 3)…, as in the paper, GPT-J and GGUF files of the Llama family;
    otherwise number i is paired with i + width/2, as in GPT-NeoX and in Transformers' Llama. The two are the
    same up to the order of the numbers within a head. One module may serve every layer of a model.

    >>> turn = Rotary(4, interleaved=True)
    >>> turn(torch.tensor([[1.0, 0.0, 1.0, 0.0]]), positions=1)
    tensor([[0.5403, 0.8415, 0.9999, 0.0100]])
    """

    def __init__(
        self,
        width: int,
        *,
        base: float = 10000.0,
        interleaved: bool = False,
        scaling: Llama3Scaling | None = None,
    ) -> None:
        super().__init__()
        self.width = check_whole_number("width", width, 2)
        if self.width % 2:
            raise ValueError(f"width: expected an even number, since numbers turn in pairs, got {width}")
        self.base = check_positive("base", base)
        self.interleaved, self.scaling = interleaved, scaling
        # Derived, so never saved: rebuilt where and as long as it is needed, and never in half precision,
        # which a buffer would be turned into by `.half()`.
        self._table: tuple[Tensor, Tensor] | None = None

    def forward(self, x: Tensor, positions: int | Tensor = 0) -> Tensor:
        """x (…, T, D) turned: from position `positions` on, or at those of a (T,) or (B, T) tensor."""
        if x.ndim < 2 or x.shape[-1] < self.width:
            raise ValueError(f"x: expected (…, T, D) with D at least {self.width}, got {tuple(x.shape)}")
        cos, sin = self.angles(x, positions)  # (T, width) or (B, 1, T, width)
        part = x if x.shape[-1] == self.width else x[..., : self.width]
        if self.interleaved:
            partner = part.view(*part.shape[:-1], self.width // 2, 2).flip(-1).view(part.shape)
        else:
            partner = part.roll(self.width // 2, -1)
        # Half-precision numbers meet float32 angles: computed in float32, rounded once.
        turned = torch.addcmul(part * cos, partner, sin).to(x.dtype)
        return turned if part is x else torch.cat((turned, x[..., self.width :]), -1)

    def angles(self, x: Tensor, positions: int | Tensor) -> tuple[Tensor, Tensor]:
        """What each number and its partner are multiplied by, in float32 (float64 for float64).

        A pair (a, b) turns into (a·cos − b·sin, b·cos + a·sin): the sine of each first one is negative.
        """
        T, dtype = x.shape[-2], working_dtype(x.dtype)
        if isinstance(positions, Tensor):
            return self._turn(self._check_positions(positions, x), dtype)
        if positions < 0:  # queries that stand before the first key, when there are more of them than keys
            return self._turn(torch.arange(positions, positions + T, device=x.device), dtype)
        cos, sin = self._long_enough(positions + T, x.device, dtype)
        return cos.narrow(0, positions, T), sin.narrow(0, positions, T)

    def _long_enough(self, length: int, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        table = self._table
        if table is None or len(table[0]) < length or table[0].device != device or table[0].dtype != dtype:
            # Made outside inference mode, so that a model may generate first and train afterwards.
            with torch.inference_mode(False), torch.no_grad():
                every = torch.arange(max(64, 1 << length.bit_length()), device=device)
                table = self._table = self._turn(every, dtype)
        return table

    def _turn(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        exact = torch.float32 if positions.device.type == "mps" else torch.float64  # far positions need it
        pairs = torch.arange(0, self.width, 2, device=positions.device, dtype=exact)
        frequencies = self.base ** (-pairs / self.width)
        if self.scaling is not None:
            frequencies = self.scaling.scaled(frequencies)
        angles = positions.to(exact).unsqueeze(-1) * frequencies
        cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)  # (…, width / 2)
        if self.interleaved:
            return cos.repeat_interleave(2, -1), torch.stack((-sin, sin), -1).flatten(-2)
        return torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)

    def _check_positions(self, positions: Tensor, x: Tensor) -> Tensor:
        """Positions (T,), or (B, T) as (B, 1, T) to stand beside (B, H, T)."""
        T, B = x.shape[-2], x.shape[0] if x.ndim == 4 else None
        if tuple(positions.shape) not in ((T,), (1, T), (B, T)):
            wanted = f"({T},)" if B is None else f"({T},) or ({B}, {T})"
            raise ValueError(f"positions: expected {wanted}, one a token, got {tuple(positions.shape)}")
        return positions if positions.ndim == 1 else positions.unsqueeze(1)

    def extra_repr(self) -> str:
        scaling = "" if self.scaling is None else f", scaling={self.scaling}"
        return f"{self.width}, base={self.base:g}, interleaved={self.interleaved}{scaling}"
