"""`Picture`: the pixels that a model read, as a reader can look at them.

Models read pixels that were normalised, and do not say how. `display_pixels` undoes the normalisation that
the model's family is trained with, and says so in a sentence; where that cannot be right, it stretches the
pixels to the range that can be shown. This file knows tensors; it does not know models.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from regard.support.png import encode_png

MAX_SIDE = 512
"""The most pixels to a side of a picture that is kept: a larger one is scaled down."""
MOST_OUTSIDE = 0.02
"""The share of pixels outside of the range from black to white up to which a normalisation is believed."""


@dataclass(frozen=True, eq=False)
class Picture:
    """One picture that a model read, scaled down to at most 512 pixels to a side."""

    pixels: Tensor
    """RGB from 0 to 255, uint8 (height, width, 3)."""

    @property
    def height(self) -> int:
        """The number of pixels from top to bottom."""
        return self.pixels.shape[0]

    @property
    def width(self) -> int:
        """The number of pixels from left to right."""
        return self.pixels.shape[1]

    @cached_property
    def png(self) -> bytes:
        """The picture as a PNG file."""
        return encode_png(self.pixels.cpu().numpy())

    def _repr_png_(self) -> bytes:
        return self.png

    def __repr__(self) -> str:
        return f"Picture({self.height} × {self.width} pixels)"


class Normalisation(NamedTuple):
    """What was subtracted from every channel of pixels from 0 to 1, and what they were divided by."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    source: str
    """Who normalises so, as it stands in a sentence: "CLIP's processor does"."""


class DisplayPixels(NamedTuple):
    """Pixels that can be shown, and how they were found."""

    pixels: Tensor  # uint8 (height, width, 3)
    about: str


@torch.no_grad()
def display_pixels(x: Tensor, normalisation: Normalisation | None = None) -> DisplayPixels:
    """Turn the pixels (C, H, W) that a model read, of one channel or three, into such as can be shown."""
    x = x.detach().float().cpu().nan_to_num(0.0, 0.0, 0.0)
    if max(x.shape[1:]) > MAX_SIDE:
        scale = MAX_SIDE / max(x.shape[1:])
        size = [max(1, round(n * scale)) for n in x.shape[1:]]
        x = torch.nn.functional.interpolate(x[None], size=size, mode="area")[0]
    shown, about = _to_range(x, normalisation)
    pixels = (shown.clamp(0, 1) * 255).round().to(torch.uint8)
    return DisplayPixels(pixels.expand(3, -1, -1).permute(1, 2, 0).contiguous(), about)


def _to_range(x: Tensor, normalisation: Normalisation | None) -> tuple[Tensor, str]:
    """Bring pixels (C, H, W) to the range from 0 to 1, and say how."""
    if normalisation is not None:
        mean, std = (torch.tensor(numbers, device="cpu").view(-1, 1, 1) for numbers in normalisation[:2])
        shown = x * std + mean
        outside = ((shown < -0.01) | (shown > 1.01)).float().mean()
        if float(outside) <= MOST_OUTSIDE:
            numbers = (", ".join(f"{n:g}" for n in dict.fromkeys(part)) for part in normalisation[:2])
            mean_text, std_text = numbers
            return shown, (
                f"Colours assume that the pixels were normalised by the mean {mean_text} and the standard "
                f"deviation {std_text}, as {normalisation.source}."
            )
    low, high = float(x.min()), float(x.max())
    if low >= 0 and high <= 1:
        return x, "Colours are the pixels as the model read them, from 0 to 1."
    if low >= 0 and 1 < high <= 255:
        return x / 255, "Colours are the pixels as the model read them, from 0 to 255."
    stretched = (x - low) / max(high - low, 1e-12)
    return stretched, (
        f"How the pixels were normalised is not known: the least, {low:.3g}, is shown black and the "
        f"greatest, {high:.3g}, white."
    )
