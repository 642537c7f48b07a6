"""Lesson 17: the scores of one query with sixteen keys, the bound of each block, and what is lost."""

from __future__ import annotations

import math

import torch
from matplotlib.figure import Figure

from regard.learn.wrong_ways import define
from scripts.lesson_pictures.shapes import DIM, INK, LINE

READ, LEFT, BOUND = "#167093", "#c9ced8", "#d1495b"
KEYS, SIZE, COUNT, SEED = 16, 4, 2, 32


def draw() -> Figure:
    """Draw a bar for each score, a line for each bound, and below them the weights with the share kept."""
    q, k = torch.randn(KEYS + 1, 8, generator=torch.Generator().manual_seed(SEED)).split((1, KEYS))
    q = 1.6 * q  # a sharper query, as trained ones are
    scores, bound = (q @ k.mT / math.sqrt(8))[0], define("selection", "block_bounds")(q, k, SIZE)[0]
    chosen = bound.topk(COUNT).indices.tolist()
    weights = torch.softmax(scores, dim=-1)
    kept = sum(weights[SIZE * block : SIZE * (block + 1)].sum().item() for block in chosen)
    colours = [READ if key // SIZE in chosen else LEFT for key in range(KEYS)]
    figure = Figure(figsize=(4.4, 4.6), layout="constrained")
    above, below = figure.subplots(2, 1, height_ratios=(1.5, 1))
    above.bar(range(KEYS), scores.tolist(), color=colours, width=0.8)
    for block, top in enumerate(bound.tolist()):
        left = SIZE * block - 0.5
        above.plot([left + 0.1, left + SIZE - 0.1], [top, top], color=BOUND, linewidth=2)
        above.text(
            left + SIZE / 2, top + 0.15, f"{top:.1f}", ha="center", va="bottom", fontsize=10, color=BOUND
        )
    above.axhline(0, color=LINE, linewidth=0.8)
    above.set_ylim(scores.min().item() - 0.3, bound.max().item() + 1.0)
    above.set_title("scores, and the bound of each block", fontsize=11, loc="left", color=INK)
    below.bar(range(KEYS), weights.tolist(), color=colours, width=0.8)
    below.set_title(f"weights: {kept:.2f} read, {1 - kept:.2f} lost", fontsize=11, loc="left", color=INK)
    for ax in (above, below):
        ax.set_xlim(-0.7, KEYS - 0.3)
        ax.set_xticks([SIZE * block + (SIZE - 1) / 2 for block in range(KEYS // SIZE)])
        ax.set_xticklabels([f"block {block}" for block in range(KEYS // SIZE)])
        ax.tick_params(labelsize=10, colors=DIM, length=0)
        ax.spines[["top", "right"]].set_visible(False)
        ax.spines[["left", "bottom"]].set_color(LINE)
    return figure
