"""Lesson 2: the way from tokens to the output, with a shape at every arrow."""

from __future__ import annotations

from matplotlib.figure import Figure

from scripts.lesson_pictures.shapes import KEY, QUERY, VALUE, arrow, box, canvas, note


def draw() -> Figure:
    """Draw the data flow of self-attention with three projections."""
    figure, ax = canvas(7.4, 4.3)
    lanes = (
        (3.45, "W_q", "q", "queries:\nwhat I look for", QUERY),
        (2.15, "W_k", "k", "keys: what I\ncan be found by", KEY),
        (0.85, "W_v", "v", "values: what\nI hand over", VALUE),
    )
    box(ax, 0.55, 2.15, 0.8, 0.8, "x", size=13, bold=True)
    note(ax, 0.55, 1.57, "tokens\n(B, T, d_model)", size=8)
    for y, matrix, name, role, colour in lanes:
        arrow(ax, (0.95, 2.15), (1.5, y))
        box(ax, 1.85, y, 0.7, 0.5, matrix, colour=colour, size=11)
        arrow(ax, (2.2, y), (2.6, y))
        box(ax, 2.9, y, 0.6, 0.6, name, colour=colour, size=13, bold=True)
        note(ax, 2.9, y + 0.53, role, size=8)
        note(ax, 2.9, y - 0.42, "(B, T, head_dim)", size=8)
    arrow(ax, (3.2, 3.45), (4.05, 2.95))
    arrow(ax, (3.2, 2.15), (4.05, 2.65))
    box(ax, 4.6, 2.8, 1.1, 0.6, "scores\nq kᵀ", size=10.5)
    note(ax, 4.6, 2.37, "(B, T, T)", size=8)
    note(ax, 4.6, 3.3, "row asks,\ncolumn is read", size=8)
    arrow(ax, (5.15, 2.8), (5.85, 2.8))
    note(ax, 5.5, 2.95, "softmax", size=8.5)
    box(ax, 6.4, 2.8, 1.1, 0.6, "weights", size=10.5)
    note(ax, 6.4, 2.37, "(B, T, T)", size=8)
    note(ax, 6.4, 3.3, "each row\nsums to 1", size=8)
    arrow(ax, (6.4, 2.24), (6.4, 1.17))
    arrow(ax, (3.2, 0.85), (5.75, 0.85))
    box(ax, 6.4, 0.85, 1.3, 0.6, "out\nweights · v", size=10.5)
    note(ax, 6.4, 0.36, "(B, T, head_dim)\na mean of values", size=8)
    return figure
