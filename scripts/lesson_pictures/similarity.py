"""Lesson 1: the scores of "model" with every token, the weights that softmax makes of them, and the map."""

from __future__ import annotations

from typing import Any

import torch
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from regard.stages.example import TOKENS, X
from regard.stages.figures.picture import draw_heatmap
from scripts.lesson_pictures.shapes import INK

BAR, MARKED = "#93c6b6", "#167093"


def draw() -> Figure:
    """Draw the row of "model" as two bar charts, and the weights of all tokens as a heatmap."""
    scores = X @ X.mT
    weights = torch.softmax(scores, dim=-1)
    figure = Figure(figsize=(8.0, 4.6), layout="constrained")
    axes = figure.subplot_mosaic([["scores", "map"], ["weights", "map"]], width_ratios=(1, 1.5))
    _bars(axes["scores"], scores[1].tolist(), '1  scores of "model": dot products')
    _bars(axes["weights"], weights[1].tolist(), "2  softmax: weights that sum to 1")
    draw_heatmap(axes["map"], weights, TOKENS, TOKENS, title="3  the weights of every token", fontsize=9.5)
    axes["map"].add_patch(
        Rectangle((-0.5, 0.5), len(TOKENS), 1, fill=False, edgecolor="#d1495b", linewidth=2.5, zorder=5)
    )
    return figure


def _bars(ax: Any, values: list[float], title: str) -> None:
    """Draw one horizontal bar with its number for each token; the bar of "model" itself is darker."""
    colours = [MARKED if token == "model" else BAR for token in TOKENS]
    ax.barh(range(len(values)), values, color=colours, height=0.72)
    for index, value in enumerate(values):
        ax.text(value, index, f" {value:.4f}", va="center", fontsize=9.5, color=INK)
    ax.set_yticks(range(len(values)), TOKENS, fontsize=9.5)
    ax.set(ylim=(len(values) - 0.5, -0.5), xlim=(0, max(values) * 1.4), xticks=[])
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    ax.set_title(title, fontsize=10.5, loc="left")
