"""Draws a mask in a notebook and with Matplotlib: a cell for each query and key, dark where it is visible."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from regard.support.cell_output import bundle, colour_bytes, enlarge, new_figure, picture_html, release
from regard.support.imports import extra
from regard.support.png import encode_png

if TYPE_CHECKING:
    from regard.attention.masks.base import Mask

COLOURS = ("#eef1f5", "#1f4e79")  # of hidden and of visible keys
MOST_CELLS = 256  # to a side in a notebook; of a larger mask, this many rows and columns are drawn
MAX_SIDE = 4096  # a figure has no use for more rows or columns than this


def draw_mask(mask: Mask, T: int, S: int, *, ax: Any = None) -> Any:
    """Draw the mask of T queries and S keys on `ax`, or on new axes, and return the Matplotlib figure.

    Of a mask that varies with batch or head, the first sequence and head are drawn.
    """
    with extra("app", "mask.plot"):
        from matplotlib.colors import ListedColormap

    if not (0 < T <= MAX_SIDE and 0 < S <= MAX_SIDE):
        raise ValueError(f"plot: expected between 1 and {MAX_SIDE} queries and keys, got {T} and {S}")
    tile = mask.tile(range(T), range(S), (T, S))
    varies = tile.ndim == 4
    visible: Tensor = tile[0, 0] if varies else tile
    is_new = ax is None
    if is_new:
        # Matplotlib's figures of very wide or tall masks would be strips: the ratio is bounded.
        ax = new_figure("mask.plot", (4.5, 4.5 * min(max(T / S, 0.4), 1.6) + 0.6)).subplots()
    ax.imshow(
        visible.to(torch.uint8).numpy(),
        cmap=ListedColormap(COLOURS),
        vmin=0,
        vmax=1,
        aspect="auto",
    )
    name = textwrap.fill(str(mask), 44)  # the longest line that the figure's width holds
    ax.set_title(name + ("\nfirst sequence and head" if varies else ""), fontsize=11)
    ax.set_xlabel("key")
    ax.set_ylabel("query")
    if max(T, S) <= 32:  # cells are large enough to tell apart
        ax.set_xticks(range(S))
        ax.set_yticks(range(T))
        ax.set_xticks([j - 0.5 for j in range(1, S)], minor=True)
        ax.set_yticks([i - 0.5 for i in range(1, T)], minor=True)
        ax.grid(which="minor", color="white", linewidth=1)
        ax.tick_params(which="both", length=0, labelsize=8)
    return release(ax.figure) if is_new else ax.figure


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
