"""Lesson 1: three dot products, the scores of "model" and the weights made of them, and the whole map."""

from __future__ import annotations

from typing import Any

import torch
from matplotlib.figure import Figure
from matplotlib.patches import Circle, Rectangle

from regard.stages.example import TOKENS, X
from regard.stages.figures.picture import draw_heatmap
from scripts.lesson_pictures.shapes import INK, PANEL, arrow, note, panel

BAR, MARKED = "#93c6b6", "#167093"
ASKING, FOUND = "#c2621b", "#167093"  # a query and a key as arrows
PLACES = {"aligned": (0.6, -0.05), "orthogonal": (-0.55, 0.5), "opposite": (-0.5, -0.55)}  # of the letter k


def draw() -> dict[str, Figure]:
    """Draw three dot products, the row of "model" as two bar charts, and the weights of all as a heatmap."""
    scores = X @ X.mT
    weights = torch.softmax(scores, dim=-1)
    row = Figure(figsize=(PANEL, 4.2), layout="constrained")
    above, below = row.subplots(2, 1)
    _bars(above, scores[1].tolist(), '1  scores of "model": dot products')
    _bars(below, weights[1].tolist(), "2  softmax: weights that sum to 1")
    heatmap, ax = panel(4.2)
    draw_heatmap(ax, weights, TOKENS, TOKENS, title="3  the weights of every token")
    ax.add_patch(
        Rectangle((-0.5, 0.5), len(TOKENS), 1, fill=False, edgecolor="#d1495b", linewidth=2.5, zorder=5)
    )
    return {"picture": row, "map": heatmap, "dot-product": _dot_products()}


def _dot_products() -> Figure:
    """Draw a query with an aligned, an orthogonal and an opposite key, their products and their weights."""
    q = torch.tensor([1.0, 0.5])
    keys = {"aligned": (1.0, 0.5), "orthogonal": (-0.5, 1.0), "opposite": (-1.0, -0.5)}
    products = torch.tensor(list(keys.values())) @ q
    weights = torch.softmax(products, dim=-1)
    figure = Figure(figsize=(PANEL, 2.5))
    for index, (name, key) in enumerate(keys.items()):
        ax = figure.add_axes((index / 3, 0, 1 / 3, 1))
        ax.set(xlim=(-1.2, 1.2), ylim=(-2.6, 1.68))
        ax.set_aspect("equal")
        ax.axis("off")
        note(ax, 0, 1.5, name, size=11, color=INK)
        near = 0.06 if name == "aligned" else 0.0  # beside each other, not one over the other
        for (x, y), colour, shift in ((q.tolist(), ASKING, near), (key, FOUND, -near)):
            arrow(ax, (-shift / 2, shift), (x - shift / 2, y + shift), colour=colour, width=2.4)
        ax.add_patch(Circle((0, 0), 0.06, color=INK, zorder=5))
        note(ax, 0.5, 0.55, "q", size=11, color=ASKING, weight="bold")
        note(ax, *PLACES[name], "k", size=11, color=FOUND, weight="bold")
        product = f"{products[index]:g}".replace("-", "−")
        note(ax, 0, -1.15, f"q · k = {product}", size=11, color=INK, weight="bold")
        note(ax, 0, -1.6, f"weight {weights[index]:.2f}", size=10)
        ax.add_patch(Rectangle((-1.0, -2.3), 2.0, 0.3, color="#e6e9ee"))
        ax.add_patch(Rectangle((-1.0, -2.3), 2.0 * weights[index].item(), 0.3, color=MARKED))
    return figure


def _bars(ax: Any, values: list[float], title: str) -> None:
    """Draw one horizontal bar with its number for each token; the bar of "model" itself is darker."""
    colours = [MARKED if token == "model" else BAR for token in TOKENS]
    ax.barh(range(len(values)), values, color=colours, height=0.72)
    for index, value in enumerate(values):
        ax.text(value, index, f" {value:.4f}", va="center", fontsize=9.5, color=INK)
    ax.set_yticks(range(len(values)), TOKENS, fontsize=9.5)
    ax.set(ylim=(len(values) - 0.5, -0.5), xlim=(0, max(values) * 1.4), xticks=[])
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    ax.set_title(title, fontsize=10.5, loc="left")
