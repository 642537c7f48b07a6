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
from scripts.lesson_pictures.shapes import panel


def draw() -> dict[str, Figure]:
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
    figures = {}
    titles = {
        "picture": f"yours: head {head}, weights of layer {layer}",
        "captured": f"the model's: at most {difference:.0e} away",
    }
    for (name, title), matrix in zip(titles.items(), (weights, theirs), strict=True):
        figures[name], ax = panel(4.4)
        draw_heatmap(ax, matrix, words, words, hidden=hidden, title=title)
    return figures
