"""Lesson 7: the output projection mixes the heads; in cross-attention keys and values are of the context."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

from scripts.lesson_pictures.shapes import KEY, PLAIN, QUERY, VALUE, arrow, box, canvas, note


def draw() -> Figure:
    """Draw both, side by side."""
    figure, ax = canvas(9.6, 4.5)
    _draw_projection(ax)
    ax.plot([4.35, 4.35], [0.25, 4.25], color="#d9dee6", linewidth=1)
    _draw_cross(ax)
    return figure


def _draw_projection(ax: Any) -> None:
    """Draw two heads side by side, and every channel of the output as a mixture of both."""
    note(ax, 2.2, 4.2, "W_o: every head writes to every channel", size=11, color="#1c2230")
    heads = ((0.85, QUERY, "head 1"), (1.45, QUERY, ""), (2.95, KEY, "head 2"), (3.55, KEY, ""))
    for x, colour, _ in heads:
        box(ax, x, 3.2, 0.55, 0.45, "", colour=colour)
    note(ax, 1.15, 3.62, "head 1")
    note(ax, 3.25, 3.62, "head 2")
    outputs = (0.85, 1.75, 2.65, 3.55)
    for x in outputs:
        box(ax, x, 1.2, 0.55, 0.45, "", colour=PLAIN)
    for x, colour, _ in heads:
        for end in outputs:
            arrow(ax, (x, 2.95), (end, 1.46), colour="#d9a44c" if colour == QUERY else "#4f9fb8", width=0.9)
    note(ax, 2.2, 0.75, "out (B, T, d_model)")
    note(ax, 2.2, 0.4, "= part of head 1 + part of head 2")


def _draw_cross(ax: Any) -> None:
    """Draw x as the source of the queries, and the context as that of keys and values."""
    note(ax, 7.0, 4.2, "cross-attention: x asks, the context answers", size=11, color="#1c2230")
    box(ax, 5.5, 3.55, 1.5, 0.5, "x\n(T, d_model)", size=9)
    box(ax, 8.0, 3.55, 1.9, 0.5, "context\n(S, d_context)", size=9)
    for x, colour, text in ((5.5, QUERY, "W_q"), (7.4, KEY, "W_k"), (8.7, VALUE, "W_v")):
        box(ax, x, 2.7, 0.75, 0.36, text, colour=colour)
    arrow(ax, (5.5, 3.3), (5.5, 2.89))
    arrow(ax, (7.75, 3.3), (7.45, 2.89))
    arrow(ax, (8.25, 3.3), (8.65, 2.89))
    box(ax, 6.45, 1.8, 2.2, 0.5, "softmax(q kᵀ / √d)\nweights (T, S)", size=9)
    arrow(ax, (5.5, 2.52), (6.1, 2.06))
    arrow(ax, (7.4, 2.52), (6.8, 2.06))
    box(ax, 7.5, 0.95, 1.6, 0.42, "weights @ v", size=9)
    arrow(ax, (6.7, 1.55), (7.2, 1.17))
    arrow(ax, (8.7, 2.52), (7.9, 1.17))
    note(ax, 7.5, 0.5, "out (T, d_model): made of the context alone")
