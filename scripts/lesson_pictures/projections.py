"""Lesson 2: from tokens through three projections to queries, keys and values, scores, weights and output."""

from __future__ import annotations

from matplotlib.figure import Figure

from scripts.lesson_pictures.shapes import KEY, PANEL, QUERY, VALUE, arrow, box, canvas, note


def draw() -> Figure:
    """Draw the data flow of self-attention with three projections, from above."""
    figure, ax = canvas(PANEL, 6.1)
    box(ax, 2.1, 5.8, 2.6, 0.42, "x: tokens  (B, T, d_model)", bold=True)
    lanes = (
        (0.75, "W_q", "q", "queries: what\nI look for", QUERY),
        (2.1, "W_k", "k", "keys: what I can\nbe found by", KEY),
        (3.45, "W_v", "v", "values: what\nI hand over", VALUE),
    )
    for x, matrix, name, role, colour in lanes:
        arrow(ax, (2.1 + 0.55 * (x - 2.1), 5.58), (x, 5.3))
        box(ax, x, 5.1, 0.8, 0.38, matrix, colour=colour, size=11)
        arrow(ax, (x, 4.9), (x, 4.62))
        box(ax, x, 4.4, 0.8, 0.42, name, colour=colour, size=13, bold=True)
        note(ax, x, 3.92, f"{role}\n(B, T, head_dim)")
    arrow(ax, (0.75, 3.58), (1.15, 3.2))
    arrow(ax, (2.1, 3.58), (1.75, 3.2))
    box(ax, 1.43, 2.97, 1.9, 0.44, "scores = q kᵀ", size=11)
    note(ax, 1.43, 2.57, "(B, T, T): row asks, column is read")
    arrow(ax, (1.43, 2.42), (1.43, 2.02))
    note(ax, 1.5, 2.22, "softmax over each row", ha="left")
    box(ax, 1.43, 1.79, 1.9, 0.44, "weights", size=11)
    note(ax, 1.43, 1.4, "(B, T, T): each row sums to 1")
    arrow(ax, (1.43, 1.25), (1.9, 0.86))
    arrow(ax, (3.45, 3.58), (2.6, 0.86))
    box(ax, 2.1, 0.63, 1.9, 0.44, "out = weights @ v", size=11)
    note(ax, 2.1, 0.24, "(B, T, head_dim): a mean of values")
    return figure
