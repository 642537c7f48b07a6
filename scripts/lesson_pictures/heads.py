"""Lesson 6: channels of all heads side by side, split into heads, and the maps of two heads."""

from __future__ import annotations

from typing import Any

import torch
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from regard.learn.judges.tables.example_heads import seeking_keys, seeking_queries
from regard.stages.example import TOKENS, X
from regard.stages.figures.picture import draw_heatmap
from scripts.lesson_pictures.shapes import DIM, INK, KEY, QUERY, arrow

COLOURS = (QUERY, KEY)  # of head 1 and head 2
CELL = 0.62


def draw() -> Figure:
    """Draw the split of one projection above the maps of two heads on the same tokens."""
    figure = Figure(figsize=(9.2, 7.2), layout="constrained")
    above, below = figure.subfigures(2, 1, height_ratios=(1, 1.55))
    _draw_split(above.subplots())
    visible = torch.ones(6, 6, dtype=torch.bool).tril()
    q = X @ seeking_queries()
    titles = (
        "head 1: first number above the second",
        "head 2: second number above the first",
    )
    for ax, title, channels in zip(below.subplots(1, 2), titles, ((0, 1), (1, 0)), strict=True):
        scores = q @ (X @ seeking_keys(*channels)).mT / 2**0.5
        weights = torch.softmax(scores.masked_fill(~visible, -torch.inf), dim=-1)
        draw_heatmap(ax, weights, TOKENS, TOKENS, hidden=~visible, title=title)
    return figure


def _draw_split(ax: Any) -> None:
    """Draw two tokens of four channels, cut into heads, then collected by head, then merged."""
    ax.set(xlim=(0, 14.2), ylim=(-1.55, 2.5))
    ax.set_aspect("equal")
    ax.axis("off")
    _draw_cells(ax, 0.9, [[1, 2, 3, 4], [5, 6, 7, 8]], "W_q(x)\n(T, d_out)")
    for index in range(2):
        ax.text(
            0.75, 1.25 - index * CELL, f"token {index + 1}", ha="right", va="center", fontsize=9.5, color=DIM
        )
    _draw_cells(ax, 5.0, [[1, 2], [3, 4]], "view\n(T, H, head_dim)", gap=0.0, top=2.3)
    _draw_cells(ax, 5.0, [[5, 6], [7, 8]], "", top=0.7)
    _draw_cells(ax, 8.2, [[1, 2], [5, 6]], "transpose\n(H, T, head_dim)", top=2.3)
    _draw_cells(ax, 8.2, [[3, 4], [7, 8]], "", top=0.7)
    for y, head in ((1.99, 1), (0.39, 2)):
        ax.text(9.62, y, f"head {head}", va="center", fontsize=9.5, color=INK)
    _draw_cells(ax, 11.6, [[1, 2, 3, 4], [5, 6, 7, 8]], "transpose, reshape\n(T, d_out)")
    for start, end in (((3.5, 0.94), (4.8, 0.94)), ((6.4, 0.94), (8.0, 0.94)), ((10.6, 0.94), (11.45, 0.94))):
        arrow(ax, start, end)


def _draw_cells(
    ax: Any, x: float, rows: list[list[int]], label: str, *, top: float = 1.56, gap: float = 0.0
) -> None:
    """Draw rows of numbered cells whose left upper corner is (x, top), in the colours of their heads."""
    for i, row in enumerate(rows):
        for j, number in enumerate(row):
            corner = (x + j * CELL, top - (i + 1) * CELL - i * gap)
            colour = COLOURS[(number - 1) % 4 // 2]
            ax.add_patch(Rectangle(corner, CELL, CELL, facecolor=colour, edgecolor="white", linewidth=2))
            ax.text(
                corner[0] + CELL / 2,
                corner[1] + CELL / 2,
                str(number),
                ha="center",
                va="center",
                fontsize=10,
                color=INK,
            )
    if label:
        ax.text(x + len(rows[0]) * CELL / 2, -1.15, label, ha="center", va="center", fontsize=9.5, color=DIM)
