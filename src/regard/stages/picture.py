"""Heatmaps of a matrix, as a figure and in a terminal, and atomic saving of figures.

This file knows a matrix and its labels; it does not know what the numbers mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.atomic import atomic_write
from regard.extras import extra

# From light (small) to dark (large), in even steps of lightness and of colour difference (OKLab), so that the
# order is visible with every kind of colour vision and in print.
RAMP = ("#f3f7ea", "#c6dfc8", "#93c6b6", "#61acae", "#2f90a3", "#167093", "#0e517f", "#123364", "#111845")
# From below 0 (blue) to above (vermilion): 0 is the ground, lightness says how far from it a number is, and
# the hues differ with every kind of colour vision. The page's diverging colours are the same.
DIVERGING = (
    "#0040a0",
    "#2d6dc9",
    "#6b9ce4",
    "#adc9f2",
    "#f6f6f6",
    "#ebbaaa",
    "#d57f65",
    "#b54a27",
    "#890f00",
)
DARK, LIGHT = "#10131a", "#ffffff"
HIDDEN = "#e4e4e7"
LOG_RANGE = 1e4  # the ratio of the largest to the smallest value on a log scale
SUFFIXES = (".png", ".svg", ".pdf")
MAX_NUMBERED_SIDE = 16  # cells of a larger matrix are too small for a number


def draw_heatmap(
    ax: Any,
    matrix: Tensor,
    rows: Sequence[str],
    cols: Sequence[str],
    *,
    hidden: Tensor | None = None,
    title: str = "",
    xlabel: str = "attended-to (key)",
    ylabel: str = "query",
    fontsize: float = 9.0,
    top: float | None = None,
    log: bool = False,
    signed: bool = False,
) -> Any:
    """Draw a matrix on Matplotlib axes `ax` with a number in each cell; returns the image.

    `rows` and `cols` are the labels of the rows and columns of `matrix`. Colours run from 0 to `top`, the
    largest value if None, or with `log` over powers of ten up to it. With `signed` they diverge from 0 to
    both sides. Cells where `hidden` is True are hatched and hold no number.
    """
    values, hidden = _check_matrix(matrix, rows, cols, hidden)
    norm = colour_scale(largest(values, hidden) if top is None else top, log, signed)
    shown = values.masked_fill(hidden, torch.nan).numpy()
    image = ax.imshow(shown, cmap=colour_map(signed), norm=norm, aspect="auto")
    for i, j in hidden.nonzero().tolist():
        ax.add_patch(_hatched(i, j))
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


def _signed_number(value: float) -> str:
    """A number with its sign, and "0" for what rounds to nothing."""
    written = f"{value:+.2f}".replace("-", "−")
    return "0" if written[1:] == "0.00" else written


def colour_map(signed: bool = False) -> Any:
    """The colour ramp as a Matplotlib colormap, or with `signed` the diverging one; NaN is grey."""
    with extra("app", "a figure"):
        from matplotlib.colors import LinearSegmentedColormap

    ramp = DIVERGING if signed else RAMP
    return LinearSegmentedColormap.from_list("regard", ramp).with_extremes(bad=HIDDEN)


def colour_scale(top: float, log: bool = False, signed: bool = False) -> Any:
    """A Matplotlib norm that maps values to the ramp: linear from 0 to `top`, or logarithmic up to `top`.

    With `signed` it is symmetrical, from −`top` to `top`, with 0 in the middle.
    """
    with extra("app", "a figure"):
        from matplotlib.colors import LogNorm, Normalize, SymLogNorm

    if signed:
        return SymLogNorm(top / LOG_RANGE, vmin=-top, vmax=top) if log else Normalize(-top, top)
    return LogNorm(top / LOG_RANGE, top, clip=True) if log else Normalize(0.0, top)


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
    with extra("app", "a heatmap in the terminal"):
        from rich.text import Text

    values, hidden = _check_matrix(matrix, rows, cols, hidden)
    top = largest(values, hidden) if top is None else top
    left = max(map(len, rows), default=0)
    width = max(max(map(len, cols), default=0), len("0.0000")) + 1
    console.print(Text(" " * left + "".join(f"{label:>{width}}" for label in cols), style="dim"))
    for label, row, hidden_row in zip(rows, values.tolist(), hidden.tolist(), strict=True):
        line = Text(f"{label:>{left}}")
        for value, is_hidden in zip(row, hidden_row, strict=True):
            if is_hidden:
                line.append(f"{'·':>{width}}", style="dim")
            else:
                line.append(f"{value:{width}.4f}", style=f"{ink(value / top)} on {shade(value / top)}")
        console.print(line)


def shade(share: float) -> str:
    """The colour #rrggbb of a cell whose value is this share of the largest one."""
    at = min(max(share, 0.0), 1.0) * (len(RAMP) - 1)
    low = min(int(at), len(RAMP) - 2)
    ends = zip(_channels(RAMP[low]), _channels(RAMP[low + 1]), strict=True)
    return "#" + "".join(f"{round(a + (b - a) * (at - low)):02x}" for a, b in ends)


def _channels(colour: str) -> tuple[int, int, int]:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


def ink(share: float) -> str:
    """The colour of the number in such a cell: dark on light shades, light on dark shades."""
    return DARK if share < 0.5 else LIGHT


def check_figure_path(path: str | Path) -> Path:
    """Return `path` if a figure can be saved there.

    Raises ValueError for an unknown suffix and FileNotFoundError for a missing folder.
    """
    path = Path(path)
    if path.suffix.lower() not in SUFFIXES:
        raise ValueError(f"save: expected a file that ends in {', '.join(SUFFIXES)}, got {path.name!r}")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"save: there is no folder {str(path.parent)!r}: make it first")
    return path


def save_figure(figure: Any, path: str | Path) -> Path:
    """Save a figure as PNG, SVG or PDF, by the suffix of `path`: atomically, always with the same bytes."""
    with extra("app", "a figure"):
        import matplotlib

    path = check_figure_path(path)
    kind = path.suffix.lower()[1:]
    undated = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind)
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
    return (visible.abs().max().item() if visible.numel() else 0.0) or 1.0


def _hatched(i: int, j: int) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle(
        (j - 0.5, i - 0.5), 1, 1, facecolor=HIDDEN, edgecolor="#b4b5bc", hatch="////", linewidth=0
    )
