"""Rotary positions as the oracle computes them: pairs of channels turned by angles that grow with position.

The frequencies are data, so that any base, any scaling and any number of rotated channels can be tried.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Rotation:
    """Turns the first `2n` channels of a head by n frequencies, and leaves the others unchanged."""

    frequencies: Tensor  # (n,), radians per position
    pairing: str = "half"  # channel i with i + n; or "interleaved": 2i with 2i + 1
    precision: torch.dtype = torch.float64  # of the angles
    tables: str = "fitting"  # or "mixed": the angles are laid out for the other pairing, which is a mistake

    def __call__(self, x: Tensor, start: int) -> Tensor:
        """Return x (B, H, T, D) turned, its first token at position `start`."""
        n = len(self.frequencies)
        if 2 * n > x.shape[-1]:
            raise ValueError(f"{2 * n} rotated channels do not fit a head of {x.shape[-1]}")
        positions = torch.arange(start, start + x.shape[2], dtype=torch.float64, device=x.device)
        angles = positions.to(self.precision)[:, None] * self._rounded_frequencies().to(x.device)  # (T, n)
        part, rest = x[..., : 2 * n], x[..., 2 * n :]
        adjacent = self.pairing == "interleaved"
        if adjacent:
            a, b = part.reshape(*part.shape[:-1], n, 2).unbind(-1)
            partner = torch.stack([-b, a], -1).flatten(-2)
        else:
            a, b = part.chunk(2, -1)
            partner = torch.cat([-b, a], -1)
        repeated = adjacent if self.tables == "fitting" else not adjacent
        angles = angles.repeat_interleave(2, -1) if repeated else torch.cat([angles, angles], -1)
        turned = part * angles.cos().to(x.dtype) + partner * angles.sin().to(x.dtype)
        return torch.cat([turned, rest], -1)

    def _rounded_frequencies(self) -> Tensor:
        """Return the frequencies, rounded as a power of the base is at this precision."""
        if self.precision == torch.float64:
            return self.frequencies.double()
        return (
            self.frequencies.sign().to(self.precision) * self.frequencies.abs().log().to(self.precision).exp()
        )
