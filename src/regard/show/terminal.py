"""One head's map in a terminal: two rows of cells a line, in colour, or in shades of grey without colour.

This file knows maps and a Rich console.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from regard.maps import AttentionMap, LinearAttentionMap
from regard.support.cells import shade
from regard.support.imports import extra

SHADES = " ░▒▓█"


def print_map(console: Any, m: AttentionMap | LinearAttentionMap, *, width: int = 64) -> None:
    """Print a map (T, S) on a Rich console, at most `width` columns wide and half as many lines high.

    Each cell pools a range of queries and of keys. Its colour is the square root of its mass relative to the
    98th percentile, so that faint cells are visible beside a sink.
    """
    with extra("app", "a map in the terminal"):
        from rich.text import Text

    # Pool the map and scale the cells to 0 … 1.
    T, S = m.shape
    cols = min(S, width, console.width)
    rows = min(T, cols)
    mass = cast(Tensor, m.pool(rows, cols)).float().abs().cpu()  # a linear layer's has either sign
    # or 1.0: a map of zeros has no percentile to divide by.
    top = mass.flatten().quantile(0.98) or 1.0
    levels = (mass / top).clamp(max=1).sqrt()  # (rows, cols)
    # Without colour, one shade stands for the stronger of two rows.
    if console.color_system is None or not console.is_terminal:
        pairs = torch.nn.functional.pad(levels, (0, 0, 0, rows % 2)).view(-1, 2, cols)
        for row in pairs.amax(1).tolist():
            console.print(Text("".join(SHADES[round(x * (len(SHADES) - 1))] for x in row)))
        return
    # With colour, a half block shows the upper row and the background the lower one.
    for row in range(0, rows, 2):
        line = Text()
        lower = levels[row + 1] if row + 1 < rows else None
        for col in range(cols):
            background = "" if lower is None else f" on {shade(float(lower[col]))}"
            line.append("▀", style=f"{shade(float(levels[row, col]))}{background}")
        console.print(line)
