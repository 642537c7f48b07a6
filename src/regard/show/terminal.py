"""One head's map in a terminal: two rows of cells a line, in colour, or in shades where there is none."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from regard.extras import extra
from regard.maps import AttentionMap
from regard.stages.picture import shade

SHADES = " ░▒▓█"


def print_map(console: Any, map: AttentionMap, *, width: int = 64) -> None:
    """Print a map (T, S) on a Rich console, at most `width` columns wide and half as many lines high.

    Each cell holds a stretch of queries and keys; its colour is the square root of the mass up to what 98% of
    the cells have, so that what is faint can be seen as well.
    """
    with extra("app", "a map in the terminal"):
        from rich.text import Text

    T, S = map.shape
    cols = min(S, width, console.width)
    rows = min(T, cols)
    mass = cast(Tensor, map.pool(rows, cols)).float().cpu()
    top = mass.flatten().quantile(0.98) or 1.0  # a sink would leave everything else in the dark
    share = (mass / top).clamp(max=1).sqrt()  # (rows, cols)
    if console.color_system is None or not console.is_terminal:
        for row in torch.nn.functional.pad(share, (0, 0, 0, rows % 2)).view(-1, 2, cols).amax(1).tolist():
            console.print(Text("".join(SHADES[round(x * (len(SHADES) - 1))] for x in row)))
        return
    for top in range(0, rows, 2):
        line = Text()
        below = share[top + 1] if top + 1 < rows else None
        for col in range(cols):
            under = "" if below is None else f" on {shade(float(below[col]))}"
            line.append("▀", style=f"{shade(float(share[top, col]))}{under}")
        console.print(line)
