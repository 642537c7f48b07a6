"""Lesson 10: a head's map of one sentence, before and after training the lesson's solution."""

from __future__ import annotations

import importlib.util

import torch
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from regard.learn.course import get_lesson
from regard.learn.judges.block import D_MODEL, HEADS, LAYERS, LOOKS_BACK, SENTENCE, map_of_each_head, train
from regard.learn.sentences import LENGTH, WORDS
from regard.stages.figures.picture import draw_heatmap

HEAD = 7  # head 3 of layer 1, the one that the judge's report shows
STEPS = 400


def draw() -> Figure:
    """Train the model as the judge does, and draw one head's map as it was before and as it is after."""
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
    figure = Figure(figsize=(10.4, 5.2), layout="constrained")
    hidden = ~torch.ones_like(before, dtype=torch.bool).tril()
    for ax, title, weights in zip(
        figure.subplots(1, 2), ("before training", f"after {STEPS} steps"), (before, after), strict=True
    ):
        draw_heatmap(ax, weights, SENTENCE, SENTENCE, hidden=hidden, title=title, fontsize=9, top=1.0)
        for query, key in LOOKS_BACK.values():
            ax.add_patch(
                Rectangle((key - 0.5, query - 0.5), 1, 1, fill=False, edgecolor="#d1495b", lw=2, zorder=5)
            )
    return figure
