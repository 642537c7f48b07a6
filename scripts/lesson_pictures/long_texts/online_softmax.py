"""Lesson 15: the scores that exist while a block is read, and what a query keeps after each block."""

from __future__ import annotations

from typing import Any

import torch
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from scripts.lesson_pictures.shapes import DIM, INK, LINE, VALUE, arrow, box, canvas, note

NOW, GONE, LATER = "#167093", "#eef1f5", "#ffffff"
QUERIES, KEYS, BLOCK = 4, 8, 2
READ = 1  # the block that exists at this moment, counted from 0
SCORES, VALUES = torch.tensor([1.0, 2.0, 4.0, 3.0]), torch.tensor([10.0, 20.0, 30.0, 40.0])  # of the lesson


def draw() -> Figure:
    """Draw the grid of scores above, and the two steps of the lesson's row below."""
    figure, ax = canvas(4.4, 4.6)
    _draw_grid(ax)
    for block, y in enumerate((1.42, 0.32)):
        _draw_step(ax, block, y)
    return figure


def _draw_grid(ax: Any) -> None:
    left, top, side = 0.75, 3.95, 0.42
    colours = [GONE if key // BLOCK < READ else NOW if key // BLOCK == READ else LATER for key in range(KEYS)]
    for query in range(QUERIES):
        for key, colour in enumerate(colours):
            corner = (left + key * side, top - (query + 1) * side)
            ax.add_patch(Rectangle(corner, side, side, facecolor=colour, edgecolor=LINE, linewidth=0.8))
    note(ax, 0.5, top - QUERIES * side / 2, "query", rotation=90, size=10)
    for block, word in enumerate(("forgotten", "now", "later", "later")):
        at = left + (block + 0.5) * BLOCK * side
        note(ax, at, top + 0.18, f"block {block + 1}", size=10, color=INK)
        note(ax, at, top - QUERIES * side - 0.17, word, size=10)
    note(ax, 0.1, 4.43, "scores, two keys at a time", size=11, color=INK, ha="left", weight="bold")


def _draw_step(ax: Any, block: int, y: float) -> None:
    """Draw what the lesson's query has after this block: the largest score, the sum and the mix."""
    seen = SCORES[: BLOCK * (block + 1)]
    highest = seen.max()
    exponentials = torch.exp(seen - highest)
    total, mixed = exponentials.sum(), exponentials @ VALUES[: len(seen)]
    scores = " and ".join(f"{score:g}" for score in SCORES[BLOCK * block : BLOCK * (block + 1)].tolist())
    note(ax, 0.1, y + 0.45, f"after block {block + 1}: scores {scores}", size=10.5, color=INK, ha="left")
    for x, text in ((0.78, f"m = {highest:g}"), (2.1, f"ℓ = {total:.4f}"), (3.57, f"o = {mixed:.4f}")):
        box(ax, x, y, 1.15 if x < 3 else 1.4, 0.4, text, colour=VALUE, size=10.5)
    if block == 0:
        factor = torch.exp(highest - SCORES.max())
        arrow(ax, (2.84, y - 0.24), (2.84, y - 0.56), colour=DIM)
        note(ax, 2.7, y - 0.4, f"times {factor:.4f}, and add", size=10, ha="right")
