"""Heatmaps of a matrix, as a figure and in a terminal, and atomic saving of figures.

This file knows a matrix and its labels; it does not know what the numbers mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.support.cells import DIVERGING, HATCH, HIDDEN, RAMP, ink, print_cells
from regard.support.files import atomic_write, check_target
from regard.support.imports import extra

LOG_RANGE = 1e4  # the ratio of the largest to the smallest value on a log scale
SUFFIXES = (".png", ".svg", ".pdf")
MOST_SHAPES = 10_000  # cells that are shapes in a file of vectors; more are an image
MAX_NUMBERED_SIDE = 16  # cells of a larger matrix are too small for a number


def draw_heatmap(
    ax: Any,
    matrix: Tensor,
    rows: Sequence[str],
    cols: Sequence[str],
    *,
    hidden: Tensor | None = None,
    title: str = "",
    xlabel: str = "key (attended to)",
    ylabel: str = "query",
    fontsize: float = 9.0,
    top: float | None = None,
    norm: Any = None,
    signed: bool = False,
) -> Any:
    """Draw a matrix on Matplotlib axes `ax` with a number in each cell; returns the image.

    `rows` and `cols` are the labels of the rows and columns of `matrix`. Colours run from 0 to `top`, the
    largest value if None, or as the Matplotlib norm `norm` says. With `signed` they diverge from 0 to both
    sides. Cells where `hidden` is True are hatched and hold no number.
    """
    values, hidden = _check_matrix(matrix, rows, cols, hidden)
    norm = norm or colour_scale(largest(values, hidden) if top is None else top, signed=signed)
    if hidden.any():
        draw_hatch(ax, values.shape)
    image = draw_cells(ax, values.masked_fill(hidden, torch.nan), colour_map(signed), norm)
    if max(values.shape) <= MAX_NUMBERED_SIDE:
        for i, j in (~hidden).nonzero().tolist():
            value = values[i, j].item()
            share = float(norm(value))
            colour = ink(abs(2 * share - 1) if signed else share)
            written = _signed_number(value) if signed else f"{value:.2f}"
            number = ax.text(j, i, written, ha="center", va="center", fontsize=fontsize, color=colour)
            number.set_in_layout(False)  # it is inside its cell, and measuring it takes most of the time
    # A dollar sign in a token does not begin a formula.
    plain = {"fontsize": fontsize, "parse_math": False}
    ax.set_xticks(range(len(cols)), cols, rotation=35, ha="right", rotation_mode="anchor", **plain)
    ax.set_yticks(range(len(rows)), rows, **plain)
    ax.set_xticks([j - 0.5 for j in range(1, len(cols))], minor=True)
    ax.set_yticks([i - 0.5 for i in range(1, len(rows))], minor=True)
    ax.grid(which="minor", color="white", linewidth=1.2)
    ax.tick_params(which="both", length=0)
    ax.spines[:].set_visible(False)
    ax.set_xlabel(xlabel, fontsize=fontsize)
    ax.set_ylabel(ylabel, fontsize=fontsize)
    ax.set_title(title, fontsize=fontsize + 2, loc="left", parse_math=False)
    return image


def draw_cells(ax: Any, values: Tensor, colours: Any, norm: Any) -> Any:
    """Draw a matrix on Matplotlib axes, as shapes if its cells are few, and return what has its colours.

    NaN is left transparent. The first row is at the top, and the middle of the first cell at (0, 0).
    """
    rows, cols = values.shape
    if rows * cols > MOST_SHAPES:
        return ax.imshow(values.numpy(), cmap=colours, norm=norm, aspect="auto", interpolation="nearest")
    edges = [[i - 0.5 for i in range(n + 1)] for n in (cols, rows)]
    cells = torch.isnan(values)
    shown = np.ma.masked_array(values.numpy(), cells.numpy())
    # Thin lines of their own colour cover the seams that viewers draw between shapes.
    image = ax.pcolormesh(*edges, shown, cmap=colours, norm=norm, edgecolors="face", linewidth=0.15)
    ax.set(xlim=(-0.5, cols - 0.5), ylim=(rows - 0.5, -0.5))
    return image


def draw_hatch(ax: Any, shape: Sequence[int]) -> None:
    """Draw the pattern of hidden cells behind a matrix of this shape."""
    from matplotlib.patches import Rectangle

    rows, cols = shape
    style: dict[str, Any] = {
        "facecolor": HIDDEN,
        "edgecolor": HATCH,
        "hatch": "///",
        "linewidth": 0,
        "zorder": 0,
    }
    ax.add_patch(Rectangle((-0.5, -0.5), cols, rows, **style))


def _signed_number(value: float) -> str:
    """A number with its sign, and "0" for what rounds to nothing."""
    # The minus sign of Unicode, as Matplotlib writes its own ticks.
    written = f"{value:+.2f}".replace("-", "−")
    return "0" if written[1:] == "0.00" else written


def colour_map(signed: bool = False) -> Any:
    """The colour ramp as a Matplotlib colormap, or with `signed` the diverging one; NaN is transparent."""
    with extra("app", "a figure"):
        from matplotlib.colors import LinearSegmentedColormap

    ramp = DIVERGING if signed else RAMP
    return LinearSegmentedColormap.from_list("regard", ramp).with_extremes(bad=(0, 0, 0, 0))


def colour_scale(top: float, log: bool = False, signed: bool = False, *, bottom: float | None = None) -> Any:
    """A Matplotlib norm that maps values to the ramp: linear from 0 to `top`, or logarithmic up to `top`.

    With `signed` it is symmetrical, from −`top` to `top`, with 0 in the middle. A log scale begins at
    `bottom`, or at `top` / `LOG_RANGE` if None. What lies beyond has the colour of the end.
    """
    with extra("app", "a figure"):
        from matplotlib.colors import LogNorm, Normalize, SymLogNorm

    least = top / LOG_RANGE if bottom is None else bottom
    if signed:
        return SymLogNorm(least, vmin=-top, vmax=top, clip=True) if log else Normalize(-top, top, clip=True)
    return LogNorm(least, top, clip=True) if log else Normalize(0.0, top, clip=True)


def print_heatmap(
    console: Any,
    matrix: Tensor,
    rows: Sequence[str],
    cols: Sequence[str],
    *,
    hidden: Tensor | None = None,
    top: float | None = None,
) -> None:
    """Print a matrix on a Rich console: coloured cells in a terminal, plain numbers elsewhere.

    `rows`, `cols`, `hidden` and `top` are as in `draw_heatmap`; hidden cells show a dot.
    """
    values, hidden = _check_matrix(matrix, rows, cols, hidden)
    top = largest(values, hidden) if top is None else top
    print_cells(console, values.tolist(), rows, cols, hidden=hidden.tolist(), top=top)


def save_figure(figure: Any, path: str | Path) -> Path:
    """Save a figure as PNG, SVG or PDF, by the suffix of `path`: atomically, always with the same bytes."""
    with extra("app", "a figure"):
        import matplotlib

    path = Path(path)
    check_target("save", path, SUFFIXES)
    kind = path.suffix.lower()[1:]
    # Matplotlib writes the time of saving into SVG and PDF, which would make each file another.
    undated = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind)
    # svg.hashsalt: the ids in an SVG are random otherwise.
    style = matplotlib.rc_context({"svg.hashsalt": "regard", "pdf.fonttype": 42})
    with atomic_write(path) as file, style:
        figure.savefig(file, format=kind, dpi=160, metadata=undated)
    return path


def _check_matrix(
    matrix: Tensor, rows: Sequence[str], cols: Sequence[str], hidden: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The matrix in float32 on the CPU and its hidden cells; ValueError if the labels do not fit."""
    values = matrix.detach().float().cpu()
    if tuple(values.shape) != (len(rows), len(cols)):
        raise ValueError(
            f"matrix: expected ({len(rows)}, {len(cols)}), a row and a column for each label, "
            f"got {tuple(values.shape)}"
        )
    return values, torch.zeros_like(values, dtype=torch.bool) if hidden is None else hidden.cpu()


def largest(values: Tensor, hidden: Tensor) -> float:
    """The largest visible value, whatever its sign, or 1 if all are 0."""
    visible = values[~hidden]
    # `or 1.0`: a scale from 0 to 0 would divide by 0.
    return (visible.abs().max().item() if visible.numel() else 0.0) or 1.0
