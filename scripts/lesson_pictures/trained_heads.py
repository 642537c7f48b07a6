"""Lesson 11: the previous-token head and the induction head of the included model, on words said twice."""

from __future__ import annotations

import torch
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from regard.learn.judges.trained_heads import TEXT, encode, load_model
from regard.stages.figures.picture import draw_heatmap

HEADS = {"head 3 of layer 3: the token before": (3, 3), "head 0 of layer 4: what followed the copy": (4, 0)}


def draw() -> Figure:
    """Draw both maps; what the name of each head promises is framed."""
    ids, words = encode(TEXT)
    maps = load_model().maps(torch.tensor([ids]))
    hidden = ~torch.ones(len(words), len(words), dtype=torch.bool).tril()
    figure = Figure(figsize=(10.4, 5.2), layout="constrained")
    half = len(ids) // 2
    marked = (
        [(q, q - 1) for q in range(1, len(words))],
        [(q, q - half + 1) for q in range(half + 1, 2 * half + 1)],
    )
    for ax, (title, (layer, head)), places in zip(figure.subplots(1, 2), HEADS.items(), marked, strict=True):
        draw_heatmap(
            ax, maps[layer].to_dense()[0, head], words, words, hidden=hidden, title=title, fontsize=8.5
        )
        for q, k in places:
            ax.add_patch(Rectangle((k - 0.5, q - 0.5), 1, 1, fill=False, edgecolor="#d1495b", lw=2, zorder=5))
    return figure
