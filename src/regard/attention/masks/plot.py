"""Draws a mask with Matplotlib: one cell for each query and key, dark where the key is visible."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from regard.support.cell_output import new_figure, release
from regard.support.imports import extra

if TYPE_CHECKING:
    from regard.attention.masks.base import Mask

COLOURS = ("#eef1f5", "#1f4e79")  # of hidden and of visible keys
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
