"""Lesson 4: the scores with the future hidden, and each row of weights as a budget of 1."""

from __future__ import annotations

from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from regard.stages.example import TOKENS, WK, WQ, X
from regard.stages.figures.picture import HIDDEN, draw_heatmap
from regard.support.cells import ink, shade
from scripts.lesson_pictures.shapes import DIM, INK, panel


def draw() -> dict[str, Figure]:
    """Draw the masked weights as a heatmap, and as one bar of length 1 for each token."""
    scores = (X @ WQ) @ (X @ WK).mT / WQ.shape[-1] ** 0.5
    future = torch.ones(len(TOKENS), len(TOKENS), dtype=torch.bool).triu(diagonal=1)
    weights = torch.softmax(scores.masked_fill(future, -torch.inf), dim=-1)
    heatmap, ax = panel(4.0)
    draw_heatmap(ax, weights, TOKENS, TOKENS, hidden=future, title="the future is hidden")
    budgets, ax = panel(4.0)
    _budgets(ax, weights)
    return {"picture": heatmap, "budgets": budgets}


def _budgets(ax: Any, weights: Tensor) -> None:
    """Draw each row as a bar of length 1, cut into what each visible token gets."""
    for i, row in enumerate(weights.tolist()):
        start = 0.0
        for j, weight in enumerate(row[: i + 1]):
            share = (j + 1) / len(TOKENS)
            ax.barh(i, weight, left=start, color=shade(share), edgecolor="white", height=0.8)
            label = f"{TOKENS[j]} {weight:.2f}" if weight > 0.3 else f"{weight:.2f}"
            ax.text(start + weight / 2, i, label, ha="center", va="center", fontsize=9, color=ink(share))
            start += weight
    ax.set_yticks(range(len(TOKENS)), TOKENS, fontsize=9)
    ax.set(ylim=(len(TOKENS) - 0.5, -0.5), xlim=(0, 1))
    ax.set_xticks([0, 1], ["0", "1"], fontsize=9)
    ax.set_xlabel("what each token spends, on itself and those before it", fontsize=9, color=INK)
    ax.set_title("a budget of 1 for each token", fontsize=11, loc="left")
    ax.tick_params(length=0, colors=DIM)
    ax.spines[:].set_visible(False)
    ax.set_facecolor(HIDDEN)
