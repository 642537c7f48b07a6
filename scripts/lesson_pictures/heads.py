"""Lesson 6: channels of all heads side by side, split into heads, and the maps of two heads."""

from __future__ import annotations

from typing import Any

import torch
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from regard.learn.judges.common.verdicts import seeking_keys, seeking_queries
from regard.stages.example import TOKENS, X
from regard.stages.figures.picture import draw_heatmap
from scripts.lesson_pictures.shapes import DIM, INK, KEY, PANEL, QUERY, arrow, canvas, note, panel

COLOURS = (QUERY, KEY)  # of head 1 and head 2
CELL = 0.34


def draw() -> dict[str, Figure]:
    """Draw the split of one projection, and the maps of two heads on the same tokens."""
    figures = {"picture": _draw_split()}
    visible = torch.ones(6, 6, dtype=torch.bool).tril()
    q = X @ seeking_queries()
    titles = {"head-1": "head 1: first number above the second", "head-2": "head 2: second above the first"}
    for (name, title), channels in zip(titles.items(), ((0, 1), (1, 0)), strict=True):
        scores = q @ (X @ seeking_keys(*channels)).mT / 2**0.5
        weights = torch.softmax(scores.masked_fill(~visible, -torch.inf), dim=-1)
        figures[name], ax = panel(3.9)
        draw_heatmap(ax, weights, TOKENS, TOKENS, hidden=~visible, title=title)
    return figures


def _draw_split() -> Figure:
    """Draw two tokens of four channels from above: cut into heads, then collected by head, then merged."""
    figure, ax = canvas(PANEL, 5.5)
    whole = [[1, 2, 3, 4], [5, 6, 7, 8]]
    _draw_cells(ax, 1.3 - 2 * CELL, 5.3, whole)
    _draw_cells(ax, 0.35, 3.8, [[1, 2], [3, 4]])
    _draw_cells(ax, 1.57, 3.8, [[5, 6], [7, 8]])
    _draw_cells(ax, 0.35, 2.3, [[1, 2], [5, 6]])
    _draw_cells(ax, 1.57, 2.3, [[3, 4], [7, 8]])
    _draw_cells(ax, 1.3 - 2 * CELL, 0.8, whole)
    for y, labels in ((3.0, ("token 1", "token 2")), (1.5, ("head 1", "head 2"))):
        for x, label in zip((0.69, 1.91), labels, strict=True):
            note(ax, x, y, label)
    for y, name, shape in (
        (4.96, "W_q(x)", "(T, d_out)"),
        (3.46, "view", "(T, H, head_dim)"),
        (1.96, "transpose", "(H, T, head_dim)"),
        (0.46, "transpose, reshape", "(T, d_out)"),
    ):
        note(ax, 2.62, y + 0.12, name, ha="left", size=10.5, color=INK)
        note(ax, 2.62, y - 0.12, shape, ha="left", color=DIM)
    for start, end in ((4.5, 3.95), (2.85, 2.45), (1.35, 0.95)):
        arrow(ax, (1.3, start), (1.3, end))
    return figure


def _draw_cells(ax: Any, x: float, top: float, rows: list[list[int]]) -> None:
    """Draw rows of numbered cells whose left upper corner is (x, top), in the colours of their heads."""
    for i, row in enumerate(rows):
        for j, number in enumerate(row):
            corner = (x + j * CELL, top - (i + 1) * CELL)
            colour = COLOURS[(number - 1) % 4 // 2]
            ax.add_patch(Rectangle(corner, CELL, CELL, facecolor=colour, edgecolor="white", linewidth=2))
            note(ax, corner[0] + CELL / 2, corner[1] + CELL / 2, str(number), size=10, color=INK)
