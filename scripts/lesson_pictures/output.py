"""Lesson 7: the output projection mixes the heads; in cross-attention keys and values are of the context."""

from __future__ import annotations

import torch
from matplotlib.figure import Figure

from regard.stages.figures.picture import draw_heatmap
from scripts.lesson_pictures.shapes import (
    INK,
    KEY,
    PANEL,
    PLAIN,
    QUERY,
    VALUE,
    arrow,
    box,
    canvas,
    note,
    panel,
)

ENGLISH = ["Can", "you", "help", "me", "translate", "this", "sentence"]
GERMAN = ["Kannst", "du", "mir", "helfen,", "diesen", "Satz", "zu", "übersetzen"]
TRANSLATED = (0, 1, 3, 2, 7, 4, 5)  # for each English word, the German one that it translates


def draw() -> dict[str, Figure]:
    """Draw the output projection, cross-attention, and the map of a translation."""
    return {"picture": _draw_projection(), "cross": _draw_cross(), "translation": _draw_translation()}


def _draw_translation() -> Figure:
    """Draw the weights of seven English words on eight German ones, from scores that are set by hand."""
    scores = torch.zeros(len(ENGLISH), len(GERMAN))
    scores[range(len(ENGLISH)), TRANSLATED] = 4.0
    figure, ax = panel(4.2)
    draw_heatmap(ax, torch.softmax(scores, dim=-1), ENGLISH, GERMAN, title="T × S: x asks, context answers")
    return figure


def _draw_projection() -> Figure:
    """Draw two heads side by side, and every channel of the output as a mixture of both."""
    figure, ax = canvas(PANEL, 4.3)
    note(ax, 2.1, 4.1, "W_o: every head writes to every channel", size=10.5, color=INK)
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
    return figure


def _draw_cross() -> Figure:
    """Draw x as the source of the queries, and the context as that of keys and values."""
    figure, ax = canvas(PANEL, 4.3)
    note(ax, 2.1, 4.1, "cross-attention: x asks, the context answers", size=10.5, color=INK)
    box(ax, 0.9, 3.5, 1.4, 0.5, "x\n(T, d_model)", size=9)
    box(ax, 3.05, 3.5, 1.8, 0.5, "context\n(S, d_context)", size=9)
    for x, colour, text in ((0.9, QUERY, "W_q"), (2.45, KEY, "W_k"), (3.65, VALUE, "W_v")):
        box(ax, x, 2.65, 0.75, 0.36, text, colour=colour)
    arrow(ax, (0.9, 3.25), (0.9, 2.84))
    arrow(ax, (2.8, 3.25), (2.5, 2.84))
    arrow(ax, (3.3, 3.25), (3.6, 2.84))
    box(ax, 1.65, 1.75, 2.0, 0.5, "softmax(q kᵀ / √d)\nweights (T, S)", size=9)
    arrow(ax, (0.9, 2.47), (1.3, 2.01))
    arrow(ax, (2.45, 2.47), (2.0, 2.01))
    box(ax, 2.55, 0.9, 1.6, 0.42, "weights @ v", size=9)
    arrow(ax, (1.85, 1.5), (2.25, 1.12))
    arrow(ax, (3.65, 2.47), (2.95, 1.12))
    note(ax, 2.1, 0.45, "out (T, d_model): made of the context alone")
    return figure
