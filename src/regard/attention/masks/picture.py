"""A mask as a notebook shows it: a cell for each query and key, dark where the key is visible."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from regard.attention.masks.plot import COLOURS
from regard.support.cell_output import bundle, colour_bytes, enlarge, picture_html
from regard.support.png import encode_png

if TYPE_CHECKING:
    from regard.attention.masks.base import Mask

MOST_CELLS = 256  # to a side; of a larger mask, this many rows and columns are drawn


def mask_output(mask: Mask) -> dict[str, str]:
    """Return what a notebook shows of a mask. One that cannot be drawn, as where a rule fails, is text."""
    text = str(mask)
    try:
        T, S = mask.picture_shape()
        tile = mask.tile(_sample(T), _sample(S), (T, S))
    except Exception:  # a rule is the user's own function
        return {"text/plain": text}
    visible: Tensor = tile[0, 0] if tile.ndim == 4 else tile
    png = encode_png(enlarge(colour_bytes(COLOURS)[visible.cpu().numpy().astype(int)]))
    which = " The first sequence and head." if tile.ndim == 4 else ""
    caption = f"{text}, drawn for {T} queries (down) and {S} keys (across): dark is visible.{which}"
    return bundle(text, picture_html(png, text, caption), png)


def _sample(size: int) -> Tensor:
    """Return all indices, or `MOST_CELLS` of them at equal distances."""
    return torch.linspace(0, size - 1, min(size, MOST_CELLS), device="cpu").round().long()
