"""A map as a notebook shows it: a picture of its first heads, in the colours of Regard's figures.

It is drawn from a pooled overview, so that a long map takes no more memory than a short one. This file knows
maps and colours; it does not know tokens.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from regard.maps.scale_end import overview_edges, scale_end
from regard.support.cell_output import bundle, colour_bytes, enlarge, picture_html
from regard.support.cells import DIVERGING, HIDDEN, RAMP
from regard.support.png import encode_png

if TYPE_CHECKING:
    from regard.maps.lazy_matrix import LazyMatrix

MOST_HEADS = 16
MOST_ENTRIES = 1 << 28  # of a map that are computed for a picture
CELLS, FEWER_CELLS = 256, 96  # to a side: of a head alone, and of one among several
PER_LINE, GAP = 8, 6  # heads in a line, and pixels between them


class MapPicture(NamedTuple):
    """The picture of a map."""

    png: bytes
    heads: int
    """How many heads it shows."""
    top: float
    """The magnitude of the darkest colour."""


def draw_map(m: LazyMatrix, signed: bool) -> MapPicture | None:
    """Draw the first heads of the first sequence; None if there is nothing to draw, or too much.

    The colours end where those of a figure and of the page do; a cell is the mean over its queries of their
    attention to its keys. `signed` entries diverge from 0.
    """
    _, H, T, S = m.matrix
    heads = min(H, MOST_HEADS, MOST_ENTRIES // max(T * S, 1))
    if min(heads, T, S) < 1:
        return None
    most = CELLS if heads == 1 else FEWER_CELLS
    rows, cols = min(T, most), min(S, most)
    first = m.select(slice(0, 1), slice(0, heads))
    cells = _pool(first, rows, cols).numpy().reshape(heads, rows, cols)
    hidden = _is_hidden(torch.from_numpy(cells), signed).numpy()
    overview = _pool(first, *overview_edges((T, S)))
    top = scale_end(overview[~_is_hidden(overview, signed)], math.inf if signed else 1.0)
    shares = np.abs(np.nan_to_num(cells) / (top or 1.0)).clip(0, 1)
    ramp = DIVERGING if signed else RAMP
    places = (np.sign(np.nan_to_num(cells)) * shares + 1) / 2 if signed else shares
    colours = _interpolate(places, ramp)
    colours[hidden] = colour_bytes([HIDDEN])[0]
    side = 320 if heads == 1 else 120
    return MapPicture(encode_png(_arrange([enlarge(picture, side) for picture in colours])), heads, top)


def _pool(m: LazyMatrix, rows: int | list[int], cols: int | list[int]) -> Tensor:
    return cast(Tensor, m.pool(rows, cols, reduce="mass")).detach().float().cpu()


def _is_hidden(values: Tensor, signed: bool) -> Tensor:
    # A softmax gives every visible key a weight: a cell of 0 is hidden by the mask.
    return ~values.isfinite() | ((values == 0) & (not signed))


def map_output(m: LazyMatrix, signed: bool) -> dict[str, str]:
    """Return what a notebook shows of a map."""
    text, picture = repr(m), draw_map(m, signed)
    if picture is None:
        return {"text/plain": text}
    H = m.matrix[1]
    which = f" The first {picture.heads} of {H} heads." if picture.heads < H else ""
    what = f"blue is below 0, red above, up to {picture.top:.2g}" if signed else attention_legend(picture)
    caption = f"{text}. Queries run down, keys run across; {what}.{which}"
    return bundle(text, picture_html(picture.png, text, caption), picture.png)


def attention_legend(picture: MapPicture) -> str:
    """Return what the colours of attention weights mean, to be written after a semicolon."""
    return f"the darkest is {picture.top:.0%} of a query's attention or more, grey is hidden by the mask"


def _interpolate(places: np.ndarray[Any, Any], ramp: list[str]) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return the colours of places from 0 to 1 along a ramp, as bytes (…, 3)."""
    stops = colour_bytes(ramp)
    at = np.linspace(0, 1, len(stops))
    channels = [np.interp(places, at, stops[:, channel]) for channel in range(3)]
    return np.stack(channels, -1).round().astype(np.uint8)


def _arrange(pictures: list[np.ndarray[Any, np.dtype[np.uint8]]]) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return pictures of one size in lines, with white between them."""
    height, width, _ = pictures[0].shape
    across = min(len(pictures), PER_LINE)
    down = math.ceil(len(pictures) / across)
    sheet = np.full((down * (height + GAP) - GAP, across * (width + GAP) - GAP, 3), 255, np.uint8)
    for number, picture in enumerate(pictures):
        y, x = (number // across) * (height + GAP), (number % across) * (width + GAP)
        sheet[y : y + height, x : x + width] = picture
    return sheet
