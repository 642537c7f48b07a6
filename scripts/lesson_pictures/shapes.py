"""What the pictures share: the width of a panel, colours, boxes with text, and arrows."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

INK, DIM, LINE = "#1c2230", "#5a6374", "#aab2c0"
# Inches. A phone of 390 px shows 1.1 px for each point of a panel, so that 9 points are 9.9 px there.
PANEL = 4.2
QUERY, KEY, VALUE, PLAIN = "#f7ddb8", "#c9e2ea", "#d5e8c8", "#eef1f5"


def panel(height: float) -> tuple[Figure, Any]:
    """Return a figure of this height in inches, as wide as a phone, and its axes."""
    figure = Figure(figsize=(PANEL, height), layout="constrained")
    return figure, figure.subplots()


def canvas(width: float, height: float) -> tuple[Figure, Any]:
    """Return a figure of this size in inches, and axes without frame whose units are inches."""
    figure = Figure(figsize=(width, height))
    ax = figure.add_axes((0, 0, 1, 1))
    ax.set(xlim=(0, width), ylim=(0, height))
    ax.axis("off")
    return figure, ax


def box(
    ax: Any,
    x: float,
    y: float,
    width: float,
    height: float,
    text: str,
    *,
    colour: str = PLAIN,
    size: float = 10.0,
    bold: bool = False,
) -> None:
    """Draw a rounded box with text in its middle; (x, y) is its centre."""
    style = "round,pad=0,rounding_size=0.06"
    corner = (x - width / 2, y - height / 2)
    ax.add_patch(FancyBboxPatch(corner, width, height, boxstyle=style, facecolor=colour, edgecolor=LINE))
    weight = "bold" if bold else "normal"
    ax.text(x, y, text, ha="center", va="center", fontsize=size, color=INK, weight=weight, linespacing=1.3)


def note(ax: Any, x: float, y: float, text: str, *, size: float = 9.0, **options: Any) -> None:
    """Write a line of text; (x, y) is its middle, or its left end with `ha="left"`."""
    ax.text(x, y, text, **{"ha": "center", "va": "center", "fontsize": size, "color": DIM, **options})


def arrow(
    ax: Any,
    start: tuple[float, float],
    end: tuple[float, float],
    *,
    colour: str = DIM,
    width: float = 1.2,
    bend: float = 0.0,
) -> None:
    """Draw an arrow; `bend` curves it."""
    ax.add_patch(
        FancyArrowPatch(
            start,
            end,
            arrowstyle="-|>",
            mutation_scale=9 + 2 * width,
            color=colour,
            linewidth=width,
            shrinkA=0,
            shrinkB=0,
            connectionstyle=f"arc3,rad={bend}",
        )
    )
