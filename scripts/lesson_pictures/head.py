"""Lesson 5: the flow through a head from x to the output, and its weights without and with dropout."""

from __future__ import annotations

from typing import Any

import torch
from matplotlib.figure import Figure

from regard.learn.judges.common.verdicts import seeking_keys, seeking_queries
from regard.stages.example import TOKENS, X
from regard.stages.figures.picture import draw_heatmap
from scripts.lesson_pictures.shapes import INK, KEY, PANEL, QUERY, VALUE, arrow, box, canvas, note, panel

DROPOUT = 0.5


def draw() -> dict[str, Figure]:
    """Draw the flow, and the map in eval mode and in training, with the sum of every row."""
    visible = torch.ones(6, 6, dtype=torch.bool).tril()
    scores = (X @ seeking_queries()) @ (X @ seeking_keys(0, 1)).mT / 2**0.5
    weights = torch.softmax(scores.masked_fill(~visible, -torch.inf), dim=-1)
    kept = torch.rand(6, 6, generator=torch.Generator().manual_seed(11)) >= DROPOUT
    dropped = weights * kept / (1 - DROPOUT)
    figures = {"picture": _draw_flow()}
    titles = {"weights": "weights: rows sum to 1", "dropout": "in training: dropped ×, the others doubled"}
    for (name, title), matrix in zip(titles.items(), (weights, dropped), strict=True):
        figures[name], ax = panel(3.9)
        draw_heatmap(ax, matrix, TOKENS, TOKENS, hidden=~visible)
        ax.set_title(title, fontsize=10.5, loc="left")
        _write_sums(ax, matrix)
    _cross_out(ax, visible & ~kept)
    return figures


def _draw_flow() -> Figure:
    """Draw every step of a head from above, with the shape of what goes into the next."""
    figure, ax = canvas(PANEL, 6.9)
    box(ax, 2.1, 6.65, 2.4, 0.4, "x  (B, T, d_model)", size=10.5, bold=True)
    for x, name, colour in (
        (0.8, "q = W_q(x)", QUERY),
        (2.1, "k = W_k(x)", KEY),
        (3.45, "v = W_v(x)", VALUE),
    ):
        arrow(ax, (2.1 + 0.5 * (x - 2.1), 6.44), (x, 6.15))
        box(ax, x, 5.93, 1.2, 0.42, name, colour=colour)
        note(ax, x, 5.6, "(B, T, head_dim)")
    arrow(ax, (0.8, 5.45), (1.2, 5.13))
    arrow(ax, (2.1, 5.45), (1.75, 5.13))
    steps = (
        ("compare", "scores = q kᵀ", "(B, T, T)", "#eef1f5"),
        ("scale", "scores / √head_dim", "(B, T, T)", "#eef1f5"),
        ("mask", "−∞ where the key comes later", "(B, T, T), the future −∞", "#f6e0e2"),
        ("softmax", "over the keys: rows sum to 1", "(B, T, T), the future 0", "#eef1f5"),
        ("dropout", "in training only: some 0,\nothers / (1 − p)", "(B, T, T)", "#e9e2f3"),
    )
    y = 4.85
    for name, what, shape, colour in steps:
        height = 0.72 if "\n" in what else 0.54
        y -= height / 2 - 0.27
        box(ax, 1.47, y, 2.34, height, "", colour=colour)
        first, second = (0.2, -0.09) if "\n" in what else (0.12, -0.12)
        note(ax, 1.47, y + first, name, size=10.5, color=INK, weight="bold")
        note(ax, 1.47, y + second, what, color=INK)
        y -= height / 2
        arrow(ax, (1.47, y), (1.47, y - 0.29))
        note(ax, 1.56, y - 0.13, shape, ha="left")
        y -= 0.29 + 0.27
    box(ax, 1.47, y + 0.02, 2.34, 0.5, "out = weights @ v", size=10.5, bold=True)
    note(ax, 1.47, y - 0.38, "(B, T, head_dim): a mean of values")
    ax.plot([3.45, 3.45], [5.45, y + 0.02], color="#5a6374", linewidth=1.2)
    arrow(ax, (3.45, y + 0.02), (2.66, y + 0.02))
    note(ax, 3.52, (5.45 + y) / 2, "the values wait", rotation=90, ha="left")
    return figure


def _cross_out(ax: Any, dropped: torch.Tensor) -> None:
    """Draw a cross in place of the number of every visible weight that is dropped."""
    for number in list(ax.texts):
        j, i = (round(place) for place in number.get_position())
        if j < len(dropped) and dropped[i, j]:
            number.remove()
    for i, j in dropped.nonzero().tolist():
        ax.text(j, i, "×", ha="center", va="center", fontsize=15, color="#b03a48", family="DejaVu Sans")


def _write_sums(ax: Any, weights: torch.Tensor) -> None:
    """Write the sum of every row at its right."""
    for i, total in enumerate(weights.sum(dim=-1).tolist()):
        ax.text(5.6, i, f"Σ {total:.2f}", va="center", fontsize=9, color=INK, clip_on=False)
