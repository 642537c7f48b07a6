"""Lesson 12: the map of the lesson's module beside the model's, and how far they are from each other."""

from __future__ import annotations

import importlib.util

import torch
from matplotlib.figure import Figure

from regard.learn.course import get_lesson
from regard.learn.judges.trained_heads import encode, load_model
from regard.learn.judges.transplant import SHOWN, TEXT, token_ids
from regard.recorder import capture
from regard.stages.figures.picture import draw_heatmap


def draw() -> Figure:
    """Run the lesson's solution on one layer, and draw both maps."""
    spec = importlib.util.spec_from_file_location("solution", get_lesson(12).folder / "solution.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    model, ids, words = load_model(), token_ids(), encode(TEXT)[1]
    layer, head = SHOWN
    mine = module.TrainedAttention(model.config.d_model, model.config.num_heads)
    module.take_weights(mine, model.blocks[layer].attention)
    weights = mine(module.layer_input(model, ids, layer))[1][0, head].detach()
    theirs = capture(model, inputs={"input_ids": ids})[layer].to_dense()[0, head]
    difference = (weights - theirs).abs().max().item()
    hidden = ~torch.ones_like(weights, dtype=torch.bool).tril()
    figure = Figure(figsize=(10.4, 5.0), layout="constrained")
    titles = ("your module with the weights of layer 4", "the model, as captured")
    for ax, title, matrix in zip(figure.subplots(1, 2), titles, (weights, theirs), strict=True):
        draw_heatmap(ax, matrix, words, words, hidden=hidden, title=title, fontsize=9)
    power = f"{difference:.0e}"
    figure.supxlabel(f"head {head} of layer {layer}: the largest difference is {power}", fontsize=10)
    return figure
