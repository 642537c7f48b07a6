"""Lesson 9: which keys and values each step computes, without a cache and with it."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from regard.stages.example import TOKENS
from scripts.lesson_pictures.shapes import INK, LINE, panel

NEW, AGAIN, READ = "#167093", "#e9a15b", "#c9e2ea"
COUNT = len(TOKENS)


def draw() -> dict[str, Figure]:
    """Draw a square for each step and token: computed for the first time, computed again, or read."""
    without, ax = panel(3.8)
    _steps(ax, AGAIN, "again", "without a cache: 21 keys are computed")
    with_cache, ax = panel(3.8)
    _steps(ax, READ, "read", "with a cache: 6 keys are computed")
    return {"picture": without, "with-cache": with_cache}


def _steps(ax: Any, colour: str, word: str, title: str) -> None:
    """Draw one row for each step: the new token's key in the last square, the earlier ones in `colour`."""
    for step in range(COUNT):
        for token in range(step + 1):
            is_new = token == step
            ax.add_patch(
                Rectangle((token, step), 1, 1, facecolor=NEW if is_new else colour, edgecolor="white", lw=2)
            )
            ax.text(
                token + 0.5,
                step + 0.5,
                "new" if is_new else word,
                ha="center",
                va="center",
                fontsize=9,
                color="white" if is_new else INK,
            )
    ax.set(xlim=(0, COUNT), ylim=(COUNT, 0))
    ax.set_xticks([token + 0.5 for token in range(COUNT)], TOKENS, fontsize=9, rotation=35, ha="right")
    ax.set_yticks([step + 0.5 for step in range(COUNT)], [f"step {n + 1}" for n in range(COUNT)], fontsize=9)
    ax.tick_params(length=0)
    ax.spines[:].set_color(LINE)
    ax.set_title(title, fontsize=11, loc="left")
