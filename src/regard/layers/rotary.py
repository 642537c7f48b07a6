"""Rotary position embeddings: each pair of channels of a head is rotated by an angle that grows with the
position.

The product of a rotated query and a rotated key depends on their distance only. This file knows the angles
and the two ways of pairing channels; which token stands at which position is up to the caller.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from regard.attention.arguments import check_positive, check_whole_number
from regard.attention.inputs import working_dtype
from regard.attention.tensors import FLOATS, WHOLE_NUMBERS, check_floats, check_tensor


class Llama3Scaling(NamedTuple):
    """The frequency scaling of Llama 3.1: low frequencies are divided by `factor`, high ones are unchanged.

    Low means fewer than `low` rotations within `original_length` positions, and high more than `high`; the
    frequencies between are interpolated.
    """

    factor: float = 8.0
    low: float = 1.0
    high: float = 4.0
    original_length: int = 8192

    def scale(self, frequencies: Tensor) -> Tensor:
        """The scaled frequencies, in radians per position."""
        rotations = self.original_length * frequencies / (2 * math.pi)  # within the original length
        share = ((rotations - self.low) / (self.high - self.low)).clamp(0, 1)
        return frequencies * (share + (1 - share) / self.factor)


class Rotary(nn.Module):
    """Rotates the first `width` channels of every head and leaves the others unchanged.

    - `base`: pair i rotates by base ** (−2i / width) radians per position.
    - `interleaved` pairs neighbours (0 1)(2 3)…, as in the paper, GPT-J and GGUF files of the Llama family;
      otherwise channel i is paired with i + width/2, as in GPT-NeoX and in Transformers' Llama. The two are
      the same up to the order of the channels within a head.
    - `scaling`: the frequency scaling of Llama 3.1, or None.

    One module may serve every layer of a model.

    >>> rotary = Rotary(4, interleaved=True)
    >>> rotary(torch.tensor([[1.0, 0.0, 1.0, 0.0]]), positions=1)
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
            raise ValueError(f"width: expected an even number, since channels rotate in pairs, got {width}")
        self.base = check_positive("base", base)
        self.interleaved, self.scaling = interleaved, scaling
        # Not a buffer: it is derived, so never saved, and `.half()` must not round it.
        self._table: tuple[Tensor, Tensor] | None = None

    def forward(self, x: Tensor, positions: int | Tensor = 0) -> Tensor:
        """x (…, T, D) rotated. `positions` is the position of the first token, or a (T,) or (B, T) tensor."""
        check_floats("x", x, values=False)
        if x.ndim < 2 or x.shape[-1] < self.width:
            raise ValueError(f"x: expected (…, T, D) with D at least {self.width}, got {tuple(x.shape)}")
        cos, sin = self.angles(x, positions)  # (T, width) or (B, 1, T, width)
        part = x if x.shape[-1] == self.width else x[..., : self.width]
        if self.interleaved:
            partner = part.view(*part.shape[:-1], self.width // 2, 2).flip(-1).view(part.shape)
        else:
            partner = part.roll(self.width // 2, -1)
        # Half-precision channels times float32 angles: computed in float32, rounded once.
        rotated = torch.addcmul(part * cos, partner, sin).to(x.dtype)
        return rotated if part is x else torch.cat((rotated, x[..., self.width :]), -1)

    def angles(self, x: Tensor, positions: int | Tensor) -> tuple[Tensor, Tensor]:
        """The factors of each channel and of its partner, in float32 (float64 for float64).

        A pair (a, b) becomes (a·cos − b·sin, b·cos + a·sin), so the second factor of each first channel is
        −sin. `x` and `positions` are as in `forward`.
        """
        T, dtype = x.shape[-2], working_dtype(x.dtype)
        if isinstance(positions, Tensor):
            return self._cos_sin(self._check_positions(positions, x), dtype)
        positions = check_whole_number("positions", positions, -(2**62))
        if positions < 0:  # the first of more queries than keys stand before the first key
            return self._cos_sin(torch.arange(positions, positions + T, device=x.device), dtype)
        cos, sin = self._table_of(positions + T, x.device, dtype)
        return cos.narrow(0, positions, T), sin.narrow(0, positions, T)

    def _table_of(self, length: int, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        table = self._table
        if table is None or len(table[0]) < length or table[0].device != device or table[0].dtype != dtype:
            # Computed outside inference mode, so that a model may generate first and train afterwards.
            with torch.inference_mode(False), torch.no_grad():
                every = torch.arange(max(64, 1 << length.bit_length()), device=device)
                table = self._table = self._cos_sin(every, dtype)
        return table

    def _cos_sin(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        exact = torch.float32 if positions.device.type == "mps" else torch.float64  # for far positions
        pairs = torch.arange(0, self.width, 2, device=positions.device, dtype=exact)
        frequencies = self.base ** (-pairs / self.width)
        if self.scaling is not None:
            frequencies = self.scaling.scale(frequencies)
        angles = positions.to(exact).unsqueeze(-1) * frequencies
        cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)  # (…, width / 2)
        if self.interleaved:
            return cos.repeat_interleave(2, -1), torch.stack((-sin, sin), -1).flatten(-2)
        return torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)

    def _check_positions(self, positions: Tensor, x: Tensor) -> Tensor:
        """Positions (T,), or (B, T) as (B, 1, T), which broadcasts with (B, H, T)."""
        check_tensor("positions", positions, values=not x.is_meta)
        if positions.dtype not in (*FLOATS, *WHOLE_NUMBERS):
            raise ValueError(f"positions: expected numbers, got {positions.dtype}")
        if positions.device != x.device:
            raise ValueError(f"positions: expected them on {x.device}, where x is, got {positions.device}")
        T, B = x.shape[-2], x.shape[0] if x.ndim == 4 else None
        if tuple(positions.shape) not in ((T,), (1, T), (B, T)):
            shapes = f"({T},)" if B is None else f"({T},) or ({B}, {T})"
            raise ValueError(
                f"positions: expected {shapes}, one for each token, got {tuple(positions.shape)}"
            )
        if positions.ndim == 2 and len(positions) == 1:
            return positions[0]
        return positions if positions.ndim == 1 else positions.unsqueeze(1)

    def extra_repr(self) -> str:
        scaling = "" if self.scaling is None else f", scaling={self.scaling}"
        return f"{self.width}, base={self.base:g}, interleaved={self.interleaved}{scaling}"
