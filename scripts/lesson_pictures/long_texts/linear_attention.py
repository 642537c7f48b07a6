"""Lesson 16: what a cache and a state hold by the length of a text, and a state written by two rules."""

from __future__ import annotations

from typing import Any

import torch
from matplotlib.figure import Figure

from scripts.lesson_pictures.shapes import DIM, INK, KEY, LINE, QUERY, VALUE, box, note

CACHE, STATE = "#d1495b", "#167093"
WIDTH, LONGEST = 128, 1000  # so long that the crossing, which the lesson asks for, cannot be read off
KEYS, VALUES = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]]), torch.tensor([10.0, 20.0, 30.0])


def draw() -> Figure:
    """Draw the two curves above, and the three writes of the lesson below."""
    figure = Figure(figsize=(4.4, 5.0))
    _draw_sizes(figure.add_axes((0.16, 0.63, 0.76, 0.29)))
    ax = figure.add_axes((0, 0, 1, 0.5))
    ax.set(xlim=(0, 4.4), ylim=(0, 2.5))
    ax.axis("off")
    _draw_writes(ax)
    return figure


def _draw_sizes(ax: Any) -> None:
    tokens = [0, LONGEST]
    ax.plot(tokens, [2 * WIDTH * n / 1000 for n in tokens], color=CACHE, linewidth=2.2)
    ax.plot(tokens, [WIDTH * WIDTH / 1000] * 2, color=STATE, linewidth=2.2)
    ax.text(560, 175, "cache", fontsize=10.5, color=CACHE, ha="right")
    ax.text(LONGEST, 28, "state", fontsize=10.5, color=STATE, ha="right")
    ax.set_title(f"thousand numbers of a head of width {WIDTH}", fontsize=11, loc="left", color=INK)
    ax.set_xlabel("tokens", fontsize=10, color=DIM)
    ax.set(xlim=(0, LONGEST), ylim=(0, 270), xticks=[0, 500, 1000], yticks=[0, 100, 200])
    ax.tick_params(labelsize=10, colors=DIM)
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color(LINE)


def _draw_writes(ax: Any) -> None:
    """Draw key and value of each token, and the state after it, as a sum and by the delta rule."""
    for x, title in ((0.75, "key"), (1.55, "value"), (2.6, "sum"), (3.75, "delta rule")):
        note(ax, x, 2.3, title, size=11, color=INK, weight="bold")
    summed = corrected = torch.zeros(2)
    for token, (key, value) in enumerate(zip(KEYS, VALUES, strict=True)):
        y = 1.85 - 0.62 * token
        summed = summed + key * value
        corrected = corrected + key * (value - key @ corrected)
        note(ax, 0.2, y, str(token), size=10.5)
        box(ax, 0.75, y, 0.62, 0.4, _numbers(key), colour=KEY, size=10.5)
        box(ax, 1.55, y, 0.62, 0.4, f"{value:g}", colour=VALUE, size=10.5)
        box(ax, 2.6, y, 0.95, 0.4, _numbers(summed), colour=QUERY, size=10.5)
        box(ax, 3.75, y, 0.95, 0.4, _numbers(corrected), colour=QUERY, size=10.5)
    note(ax, 2.2, 0.12, "the third token has the key of the first", size=10)


def _numbers(vector: torch.Tensor) -> str:
    return "  ".join(f"{number:g}" for number in vector.tolist())
