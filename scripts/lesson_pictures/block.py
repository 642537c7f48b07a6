"""Lesson 10: a block and the GPT around it, and a head's map before and after training the solution."""

from __future__ import annotations

import importlib.util
from typing import Any

import torch
from matplotlib.figure import Figure
from matplotlib.patches import Circle, Rectangle

from regard.learn.course import get_lesson
from regard.learn.judges.block import D_MODEL, HEADS, LAYERS, LOOKS_BACK, SENTENCE, map_of_each_head, train
from regard.learn.sentences import LENGTH, WORDS
from regard.stages.figures.picture import draw_heatmap
from scripts.lesson_pictures.shapes import DIM, INK, KEY, PANEL, QUERY, VALUE, arrow, box, canvas, note, panel

HEAD = 7  # head 3 of layer 1, the one that the judge's report shows
STEPS = 400


def draw() -> dict[str, Figure]:
    """Draw the block, train the model as the judge does, and draw one head's map before that and after."""
    spec = importlib.util.spec_from_file_location("solution", get_lesson(10).folder / "solution.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    torch.manual_seed(0)
    model = module.SmallGPT(len(WORDS), LENGTH, D_MODEL, HEADS, LAYERS)
    before = map_of_each_head(model)[HEAD]
    train(model, STEPS, 0.0, print)
    after = map_of_each_head(model)[HEAD]
    figures = {"picture": _draw_block()}
    hidden = ~torch.ones_like(before, dtype=torch.bool).tril()
    titles = {"before": "before training", "after": f"after {STEPS} steps"}
    for (name, title), weights in zip(titles.items(), (before, after), strict=True):
        figures[name], ax = panel(4.4)
        draw_heatmap(ax, weights, SENTENCE, SENTENCE, hidden=hidden, title=title, top=1.0)
        for label in ax.get_xticklabels():  # too many to be slanted
            label.set(rotation=90, va="center")
        for query, key in LOOKS_BACK.values():
            ax.add_patch(
                Rectangle((key - 0.5, query - 0.5), 1, 1, fill=False, edgecolor="#d1495b", lw=2, zorder=5)
            )
    return figures


def _draw_block() -> Figure:
    """Draw the residual stream from above, and what each part of a block reads from it and adds to it."""
    figure, ax = canvas(PANEL, 7.2)
    stream = 0.75
    box(ax, 2.1, 6.95, 3.7, 0.4, "token ids  (B, T)", size=10)
    arrow(ax, (stream, 6.75), (stream, 6.46))
    box(ax, 2.1, 6.22, 3.7, 0.46, "token embedding + position embedding", colour=KEY, size=9.5)
    box(ax, 2.1, 3.75, 3.9, 3.86, "", colour="#f8f9fb")
    note(ax, 3.9, 2.1, "a block, N times", ha="right", color=INK)
    _draw_part(ax, stream, 5.3, "attention", "between tokens, causal", QUERY)
    _draw_part(ax, stream, 3.4, "MLP", "on each token:\nd_model → 4 d_model → d_model", VALUE)
    arrow(ax, (stream, 5.99), (stream, 1.5), width=2.2, colour=INK)
    for y in (4.0, 2.1):
        ax.add_patch(Circle((stream, y), 0.15, facecolor="white", edgecolor=INK, zorder=4))
        ax.text(stream, y, "+", ha="center", va="center_baseline", fontsize=13, color=INK, zorder=5)
    note(ax, 0.33, 3.75, "residual stream (B, T, d_model)", rotation=90, color=INK)
    box(ax, 2.1, 1.28, 3.7, 0.4, "norm", size=10)
    arrow(ax, (stream, 1.08), (stream, 0.82))
    box(ax, 2.1, 0.58, 3.7, 0.46, "linear: logits  (B, T, vocab_size)", colour=KEY, size=9.5)
    note(ax, 2.1, 0.2, "a score for every word that might come next")
    return figure


def _draw_part(ax: Any, stream: float, y: float, name: str, what: str, colour: str) -> None:
    """Draw a part of a block: it reads the stream at the height `y` through a norm, and adds to it."""
    arrow(ax, (stream, y), (1.3, y))
    box(ax, 2.55, y, 2.5, 0.34, "norm", size=10)
    arrow(ax, (2.55, y - 0.17), (2.55, y - 0.38))
    box(ax, 2.55, y - 0.73, 2.5, 0.7, "", colour=colour)
    note(ax, 2.55, y - 0.55, name, size=10.5, color=INK, weight="bold")
    note(ax, 2.55, y - 0.84, what, color=INK)
    ax.plot([2.55, 2.55], [y - 1.08, y - 1.3], color=DIM, linewidth=1.2)
    arrow(ax, (2.55, y - 1.3), (stream + 0.17, y - 1.3))
