"""Lesson 8: a pair of channels at six positions, rotary scores by distance, and weights under ALiBi."""

from __future__ import annotations

import math
from typing import Any

import torch
from matplotlib.figure import Figure

from regard.layers.rotary import Rotary
from regard.stages.positions import alibi_bias
from scripts.lesson_pictures.shapes import DIM, INK, LINE, panel

DARK, MIDDLE, LIGHT = "#123364", "#2f90a3", "#c98a2b"
DISTANCES = 40


def draw() -> dict[str, Figure]:
    """Draw the three panels."""
    figures = {}
    for name, draw_on in (("picture", _draw_turns), ("rotary", _draw_scores), ("alibi", _draw_alibi)):
        figures[name], ax = panel(3.6)
        draw_on(ax)
    return figures


def _draw_turns(ax: Any) -> None:
    """Draw the vector (1, 0) at the positions 0 to 5."""
    turned = Rotary(2)(torch.tensor([[1.0, 0.0]] * 6))
    for position, (a, b) in enumerate(turned.tolist()):
        ax.annotate("", (a, b), (0, 0), arrowprops={"arrowstyle": "-|>", "color": MIDDLE, "linewidth": 1.6})
        ax.text(1.14 * a, 1.14 * b, str(position), ha="center", va="center", fontsize=10, color=INK)
    angles = [2 * math.pi * step / 200 for step in range(201)]
    ax.plot([math.cos(t) for t in angles], [math.sin(t) for t in angles], color=LINE, linewidth=0.8)
    ax.set(xlim=(-1.35, 1.35), ylim=(-1.35, 1.35))
    ax.set_aspect("equal", anchor="N")
    ax.axis("off")
    ax.set_title("1  (1, 0) at the positions 0 to 5", fontsize=11, loc="left", color=INK)


def _draw_scores(ax: Any) -> None:
    """Draw the score of two equal vectors by their distance, for one pair and for all pairs of a head."""
    pairs = 16
    frequencies = 10000.0 ** (-torch.arange(pairs) / pairs)
    scores = torch.cos(torch.arange(DISTANCES)[:, None] * frequencies)  # (distance, pair)
    for pair, colour in ((0, LINE), (4, MIDDLE), (12, LIGHT)):
        ax.plot(scores[:, pair], color=colour, linewidth=1.3, label=f"pair {pair + 1} of {pairs}")
    ax.plot(scores.mean(dim=1), color=DARK, linewidth=2.2, label="mean of all pairs")
    ax.set_ylim(-1.1, 1.9)
    ax.set_yticks([-1, 0, 1])
    _finish(ax, "2  rotary: scores by distance", "distance, wherever the two tokens stand")


def _draw_alibi(ax: Any) -> None:
    """Draw the weights of the last token under ALiBi, if all scores are equal, for three heads of eight."""
    weights = torch.softmax(alibi_bias(8, DISTANCES)[:, -1], dim=-1).flip(-1)  # (H, distance)
    for head, colour in ((0, DARK), (2, MIDDLE), (4, LIGHT)):
        ax.plot(
            weights[head], color=colour, linewidth=1.8, label=f"head {head + 1}: slope 1/{2 ** (head + 1)}"
        )
    _finish(ax, "3  ALiBi: weights of equal scores", "distance")


def _finish(ax: Any, title: str, xlabel: str) -> None:
    ax.set_title(title, fontsize=11, loc="left", color=INK)
    ax.set_xlabel(xlabel, fontsize=9, color=DIM)
    ax.tick_params(labelsize=9, colors=DIM)
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color(LINE)
    ax.legend(fontsize=9, frameon=False, loc="upper right")
