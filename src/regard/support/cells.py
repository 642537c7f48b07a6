"""The coloured cells of a heatmap, from plain numbers: this file needs neither PyTorch nor Matplotlib."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from regard.support.imports import extra

_COLOURS = tomllib.loads(Path(__file__).with_name("colours.toml").read_text(encoding="utf-8"))
RAMP: list[str] = _COLOURS["ramp"]
DIVERGING: list[str] = _COLOURS["diverging"]
HIDDEN: str = _COLOURS["hidden"]
HATCH: str = _COLOURS["hatch"]
DARK, LIGHT = "#10131a", "#ffffff"


def print_cells(
    console: Any,
    values: Sequence[Sequence[float]],
    rows: Sequence[str],
    cols: Sequence[str],
    *,
    hidden: Sequence[Sequence[bool]],
    top: float,
) -> None:
    """Print a matrix on a Rich console: coloured cells in a terminal, plain numbers elsewhere.

    `rows` and `cols` are the labels, colours run from 0 to `top`, and cells where `hidden` is True show a
    dot.
    """
    with extra("app", "a heatmap in the terminal"):
        from rich.text import Text

    left = max(map(len, rows), default=0)
    width = max(max(map(len, cols), default=0), len("0.0000")) + 1
    console.print(Text(" " * left + "".join(f"{label:>{width}}" for label in cols), style="dim"))
    for label, row, hidden_row in zip(rows, values, hidden, strict=True):
        line = Text(f"{label:>{left}}")
        for value, is_hidden in zip(row, hidden_row, strict=True):
            if is_hidden:
                line.append(f"{'·':>{width}}", style="dim")
            else:
                line.append(f"{value:{width}.4f}", style=f"{ink(value / top)} on {shade(value / top)}")
        console.print(line)


def shade(share: float) -> str:
    """The colour #rrggbb of a cell whose value is this share of the largest one."""
    at = min(max(share, 0.0), 1.0) * (len(RAMP) - 1)
    low = min(int(at), len(RAMP) - 2)
    ends = zip(_channels(RAMP[low]), _channels(RAMP[low + 1]), strict=True)
    return "#" + "".join(f"{round(a + (b - a) * (at - low)):02x}" for a, b in ends)


def _channels(colour: str) -> tuple[int, int, int]:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


def ink(share: float) -> str:
    """The colour of the number in such a cell: dark on light shades, light on dark shades."""
    return DARK if share < 0.5 else LIGHT
