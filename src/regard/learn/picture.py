"""The picture of the learner's own weights: in the terminal, and as an SVG for the lesson's page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from regard.learn.lesson import WeightPicture
from regard.stages.figures.picture import draw_heatmap, print_heatmap, save_figure
from regard.support.imports import extra


def print_picture(console: Any, picture: WeightPicture) -> None:
    """Print weights on a Rich console, one heatmap for each title, all on one colour scale."""
    for title, weights in zip(picture.titles, picture.weights, strict=True):
        console.print(f"\n{title}: one row for each query", markup=False)
        matrix, hidden = torch.tensor(weights), _hidden(weights)
        print_heatmap(console, matrix, picture.rows, picture.cols, hidden=hidden, top=_top(picture))


def save_picture(picture: WeightPicture, path: Path) -> None:
    """Save weights as a figure, one heatmap for each title, all on one colour scale."""
    with extra("app", "a figure"):
        from matplotlib.figure import Figure

    count = len(picture.titles)
    figure = Figure(figsize=(4.6 * count, 4.2), layout="constrained")
    for ax, title, weights in zip(
        figure.subplots(1, count, squeeze=False)[0], picture.titles, picture.weights, strict=True
    ):
        matrix, hidden = torch.tensor(weights), _hidden(weights)
        draw_heatmap(ax, matrix, picture.rows, picture.cols, hidden=hidden, title=title, top=_top(picture))
    save_figure(figure, path)


def _top(picture: WeightPicture) -> float:
    """The largest weight of a picture."""
    return torch.tensor(picture.weights).max().item()


def _hidden(weights: list[list[float]]) -> torch.Tensor:
    """Which cells to draw as hidden: weights that are exactly 0, as only a mask makes them."""
    return torch.tensor(weights) == 0
