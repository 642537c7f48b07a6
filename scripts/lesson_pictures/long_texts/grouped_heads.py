"""Lesson 13: eight query heads on eight, two and one key/value heads, and what is kept for each token."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

from scripts.lesson_pictures.shapes import INK, KEY, LINE, QUERY, box, canvas, note

HEADS, STEP, LEFT = 8, 0.5, 0.45
KINDS = (("multi-head", 8), ("grouped", 2), ("multi-query", 1))


def draw() -> Figure:
    """Draw the three kinds, one below the other."""
    figure, ax = canvas(4.4, 4.65)
    for (name, groups), y in zip(KINDS, (4.45, 2.9, 1.35), strict=True):
        _draw_kind(ax, name, groups, y)
    return figure


def _draw_kind(ax: Any, name: str, groups: int, y: float) -> None:
    """Draw query heads, the key/value heads below them, and a line from each to the one that it reads."""
    note(ax, 0.2, y, name, size=11, color=INK, ha="left", weight="bold")
    kept = f"{groups} key{'s' * (groups > 1)}, {groups} value{'s' * (groups > 1)} for a token"
    note(ax, 4.2, y, kept, size=10, ha="right")
    size = HEADS // groups
    for head in range(HEADS):
        x, group = LEFT + STEP * head, head // size
        middle = LEFT + STEP * (group * size + (size - 1) / 2)
        ax.plot([x, middle], [y - 0.55, y - 0.86], color=LINE, linewidth=1.2, zorder=0)
        box(ax, x, y - 0.4, 0.4, 0.3, f"q{head}", colour=QUERY, size=10)
        if head % size == 0:
            box(ax, middle, y - 1.0, 0.44, 0.3, f"kv{group}", colour=KEY, size=10)
