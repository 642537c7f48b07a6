"""Lesson 18: what the four stops of the tour show, drawn from the included model on its included text."""

from __future__ import annotations

from typing import Any

import torch
from matplotlib.figure import Figure

from regard.cli.parts.demo_text import STORY
from regard.gpt import GPT
from regard.recorder import Capture, capture
from regard.stages.figures.picture import colour_map, colour_scale, draw_cells, draw_heatmap
from scripts.lesson_pictures.shapes import DIM, PANEL, panel

CORNER = 8  # tokens of the upper left corner
PART = slice(195, 255)  # rows of a part of the text in which phrases are said again
FAINT = 0.2  # weights from here on have the darkest colour: one of the largest would be seen alone otherwise


def draw() -> dict[str, Figure]:
    """Draw a whole map, its corner, a part of the maps of two neighbours, and the entropy of every head."""
    seen = capture(GPT.from_pretrained("default"), text=STORY)
    weights = seen[4].to_dense()[0]  # (heads, 325, 325)
    words = ["start", *(token.strip() for token in seen.tokens[0][1:CORNER])]
    corner, ax = panel(4.0)
    hidden = ~torch.ones(CORNER, CORNER, dtype=torch.bool).tril()
    draw_heatmap(ax, weights[0, :CORNER, :CORNER], words, words, hidden=hidden, title="the upper left corner")
    whole, ax = panel(4.2)
    _draw_map(ax, weights[0], "head 0 of layer 4: 325 tokens")
    neighbours = Figure(figsize=(PANEL, 4.6), layout="constrained")
    for head, title, ax in zip(
        (0, 1), ("head 0 of layer 4", "its neighbour, head 1"), neighbours.subplots(2), strict=True
    ):
        _draw_map(ax, weights[head, PART, : PART.stop], title)
    return {
        "picture": whole,
        "corner": corner,
        "neighbours": neighbours,
        "entropy": _draw_entropy(seen),
    }


def _draw_map(ax: Any, weights: torch.Tensor, title: str) -> None:
    """Draw the last rows of a map, or all, without labels; what the mask hides is blank."""
    rows, cols = weights.shape
    first = cols - rows  # the token of the first row
    future = torch.ones(rows, cols, dtype=torch.bool).triu(first + 1)
    draw_cells(ax, weights.masked_fill(future, torch.nan), colour_map(), colour_scale(FAINT))
    ax.set_title(title, fontsize=11, loc="left")
    ax.set_xlabel("key (attended to)", fontsize=9, color=DIM)
    ax.set_ylabel("query", fontsize=9, color=DIM)
    ax.set_yticks([0, rows - 1], [str(first), str(cols - 1)])
    ax.set_xticks([0, cols - 1], ["0", str(cols - 1)])
    ax.tick_params(labelsize=9, colors=DIM)
    ax.spines[["top", "right"]].set_visible(False)


def _draw_entropy(seen: Capture) -> Figure:
    entropy = torch.tensor([[seen[i, j].entropy().mean().item() for j in range(4)] for i in range(6)])
    figure, ax = panel(3.4)
    heads, layers = [f"head {j}" for j in range(4)], [f"layer {i}" for i in range(6)]
    draw_heatmap(ax, entropy, layers, heads, title="entropy of a row, in nats", xlabel="", ylabel="")
    return figure
