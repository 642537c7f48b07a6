"""Lesson 14: the masks of a window without and with a sink, and the loss of a model with each."""

from __future__ import annotations

import doctest
from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from regard.learn.course import get_lesson
from regard.learn.wrong_ways import define
from scripts.lesson_pictures.shapes import DIM, INK, LINE, canvas, note

NEAR, SINK, BAD = "#167093", "#e9a15b", "#d1495b"
TOKENS, WINDOW = 10, 4


def draw() -> Figure:
    """Draw the two masks side by side, and below them a bar for each loss that the lesson computes."""
    figure, ax = canvas(4.4, 4.35)
    _draw_mask(ax, 0.1, "a window of 4", sinks=0)
    _draw_mask(ax, 2.3, "and one sink", sinks=1)
    note(ax, 0.1, 1.55, "loss of the included model", size=11, color=INK, ha="left", weight="bold")
    bars = zip(("all keys", "latest 7, first 1", "latest 8"), (DIM, SINK, BAD), _losses(), strict=True)
    for row, (label, colour, loss) in enumerate(bars):
        y = 1.2 - 0.45 * row
        note(ax, 1.5, y, label, size=10.5, color=INK, ha="right")
        ax.add_patch(Rectangle((1.6, y - 0.15), 0.33 * loss, 0.3, facecolor=colour))
        note(ax, 1.68 + 0.33 * loss, y, f"{loss:.1f}", size=10.5, color=INK, ha="left")
    return figure


def _draw_mask(ax: Any, left: float, title: str, sinks: int) -> None:
    """Draw which keys each query sees, the sinks in a colour of their own."""
    side, top = 0.2, 3.95
    note(ax, left, top + 0.2, title, size=11, color=INK, ha="left", weight="bold")
    visible = define("window", "streaming_mask")
    for query, row in enumerate(visible(TOKENS, TOKENS, WINDOW, sinks).tolist()):
        for key, is_visible in enumerate(row):
            seen = SINK if key < sinks else NEAR
            corner = (left + key * side, top - (query + 1) * side)
            colour = seen if is_visible else "#ffffff"
            ax.add_patch(Rectangle(corner, side, side, facecolor=colour, edgecolor=LINE, linewidth=0.6))
    note(ax, left + TOKENS * side / 2, top - TOKENS * side - 0.15, "key", size=10)


def _losses() -> list[float]:
    """The three losses of the lesson's session, as its text has them."""
    examples = doctest.DocTestParser().get_examples(get_lesson(14).text)
    return [float(example.want) for example in examples if example.source.startswith("loss(")]
