"""Lesson 5: the weights of a head, which of them dropout keeps, and what is left of them in training."""

from __future__ import annotations

from typing import Any

import torch
from matplotlib.figure import Figure

from regard.learn.judges.tables.example_heads import seeking_keys, seeking_queries
from regard.stages.example import TOKENS, X
from regard.stages.figures.picture import draw_heatmap
from scripts.lesson_pictures.shapes import DIM, INK

DROPOUT = 0.5


def draw() -> Figure:
    """Draw the map in eval mode, the kept cells, and the map in training, with the sum of every row."""
    visible = torch.ones(6, 6, dtype=torch.bool).tril()
    scores = (X @ seeking_queries()) @ (X @ seeking_keys(0, 1)).mT / 2**0.5
    weights = torch.softmax(scores.masked_fill(~visible, -torch.inf), dim=-1)
    kept = torch.rand(6, 6, generator=torch.Generator().manual_seed(11)) >= DROPOUT
    dropped = weights * kept / (1 - DROPOUT)
    figure = Figure(figsize=(10.4, 4.0), layout="constrained")
    left, middle, right = figure.subplots(1, 3, width_ratios=(1.1, 0.75, 1.1))
    draw_heatmap(left, weights, TOKENS, TOKENS, hidden=~visible, title="1  weights: rows sum to 1")
    _draw_kept(middle, kept, visible)
    draw_heatmap(
        right, dropped, TOKENS, TOKENS, hidden=~visible, title="3  in training: survivors × 2", ylabel=""
    )
    _write_sums(left, weights)
    _write_sums(right, dropped)
    return figure


def _draw_kept(ax: Any, kept: torch.Tensor, visible: torch.Tensor) -> None:
    """Draw a dot for every visible weight that is kept, and a cross for every one that is dropped."""
    for i, j in visible.nonzero().tolist():
        mark, colour = ("●", "#167093") if kept[i, j] else ("×", "#b03a48")
        ax.text(j, i, mark, ha="center", va="center", fontsize=13, color=colour, family="DejaVu Sans")
    ax.set(xlim=(-0.5, 5.5), ylim=(5.5, -0.5), xticks=[], yticks=[])
    ax.spines[:].set_visible(False)
    ax.set_title("2  kept ●, dropped ×", fontsize=11, loc="left", color=INK, family="DejaVu Sans")
    ax.set_xlabel("dropout 0.5, drawn anew at every step", fontsize=9, color=DIM)


def _write_sums(ax: Any, weights: torch.Tensor) -> None:
    """Write the sum of every row at its right."""
    for i, total in enumerate(weights.sum(dim=-1).tolist()):
        ax.text(5.65, i, f"Σ {total:.2f}", va="center", fontsize=9, color=INK, clip_on=False)
