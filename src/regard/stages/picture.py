"""A matrix as a heatmap, on paper and in a terminal, and a figure safely on disk.

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

# Light for little, dark for much, in even steps of lightness and of colour difference (OKLab), so that the
# order can be seen with every kind of colour vision and in print.
RAMP = ("#f3f7ea", "#c6dfc8", "#93c6b6", "#61acae", "#2f90a3", "#167093", "#0e517f", "#123364", "#111845")
DARK, LIGHT = "#10131a", "#ffffff"
HIDDEN = "#e4e4e7"
LOG_RANGE = 1e4  # from the darkest colour of a log scale to the lightest
SUFFIXES = (".png", ".svg", ".pdf")
MOST_NUMBERS = 16  # cells of a larger matrix are too small to read a number in


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
    log: bool = False,
) -> Any:
    """Draw a matrix (rows, cols) on Matplotlib axes with a number in each cell; returns the image.

    Colours run from 0 to the largest value, or with `log` over powers of ten up to it. Cells where `hidden`
    is True are hatched and hold no number.
    """
    values, hidden = _checked(matrix, rows, cols, hidden)
    norm = colour_scale(_top(values, hidden), log)
    shown = values.masked_fill(hidden, torch.nan).numpy()
    image = ax.imshow(shown, cmap=colour_map(), norm=norm, aspect="auto")
    for i, j in hidden.nonzero().tolist():
        ax.add_patch(_hatched(i, j))
    if max(values.shape) <= MOST_NUMBERS:
        for i, j in (~hidden).nonzero().tolist():
            value = values[i, j].item()
            colour = ink(float(norm(value)))
            ax.text(j, i, f"{value:.2f}", ha="center", va="center", fontsize=fontsize, color=colour)
    # A token may hold a dollar sign, which is no formula.
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


def colour_map() -> Any:
    """The ramp as Matplotlib takes it; what is not a number is grey."""
    with extra("app", "a figure"):
        from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("regard", RAMP).with_extremes(bad=HIDDEN)


def colour_scale(top: float, log: bool = False) -> Any:
    """From a value to its share of the ramp: evenly from 0, or by powers of ten."""
    with extra("app", "a figure"):
        from matplotlib.colors import LogNorm, Normalize

    return LogNorm(top / LOG_RANGE, top, clip=True) if log else Normalize(0.0, top)


def print_heatmap(
    console: Any, matrix: Tensor, rows: Sequence[str], cols: Sequence[str], *, hidden: Tensor | None = None
) -> None:
    """Print a matrix on a Rich console: coloured cells in a terminal, plain numbers anywhere else."""
    with extra("app", "a heatmap in the terminal"):
        from rich.text import Text

    values, hidden = _checked(matrix, rows, cols, hidden)
    top = _top(values, hidden)
    left = max(map(len, rows), default=0)
    width = max(max(map(len, cols), default=0), len("0.0000")) + 1
    console.print(Text(" " * left + "".join(f"{label:>{width}}" for label in cols), style="dim"))
    for label, row, dark in zip(rows, values.tolist(), hidden.tolist(), strict=True):
        line = Text(f"{label:>{left}}")
        for value, out_of_sight in zip(row, dark, strict=True):
            if out_of_sight:
                line.append(f"{'·':>{width}}", style="dim")
            else:
                line.append(f"{value:{width}.4f}", style=f"{ink(value / top)} on {shade(value / top)}")
        console.print(line)


def shade(share: float) -> str:
    """The colour of a cell that holds this share of the largest value, as #rrggbb."""
    at = min(max(share, 0.0), 1.0) * (len(RAMP) - 1)
    low = min(int(at), len(RAMP) - 2)
    ends = zip(_channels(RAMP[low]), _channels(RAMP[low + 1]), strict=True)
    return "#" + "".join(f"{round(a + (b - a) * (at - low)):02x}" for a, b in ends)


def _channels(colour: str) -> tuple[int, int, int]:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


def ink(share: float) -> str:
    """The colour of the number in such a cell: dark on the light half, light on the dark half."""
    return DARK if share < 0.5 else LIGHT


def check_figure_path(path: str | Path) -> Path:
    """A path that a figure can be saved to; raises before any work is done for one that cannot."""
    path = Path(path)
    if path.suffix.lower() not in SUFFIXES:
        raise ValueError(f"save: expected a file that ends in {', '.join(SUFFIXES)}, got {path.name!r}")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"save: there is no folder {str(path.parent)!r}: make it first")
    return path


def save_figure(figure: Any, path: str | Path) -> Path:
    """Write a figure as PNG, SVG or PDF, by the suffix: whole or not at all, the same bytes every time."""
    with extra("app", "a figure"):
        import matplotlib

    path = check_figure_path(path)
    kind = path.suffix.lower()[1:]
    undated = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind)
    style = matplotlib.rc_context({"svg.hashsalt": "regard", "pdf.fonttype": 42})
    with atomic_write(path) as file, style:
        figure.savefig(file, format=kind, dpi=160, metadata=undated)
    return path


def _checked(
    matrix: Tensor, rows: Sequence[str], cols: Sequence[str], hidden: Tensor | None
) -> tuple[Tensor, Tensor]:
    values = matrix.detach().float().cpu()
    if tuple(values.shape) != (len(rows), len(cols)):
        raise ValueError(
            f"matrix: expected ({len(rows)}, {len(cols)}), a row and a column for each label, "
            f"got {tuple(values.shape)}"
        )
    return values, torch.zeros_like(values, dtype=torch.bool) if hidden is None else hidden.cpu()


def _top(values: Tensor, hidden: Tensor) -> float:
    """The largest value in sight, or 1 if there is none above 0."""
    seen = values[~hidden]
    return (seen.max().item() if seen.numel() else 0.0) or 1.0


def _hatched(i: int, j: int) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle(
        (j - 0.5, i - 0.5), 1, 1, facecolor=HIDDEN, edgecolor="#b4b5bc", hatch="////", linewidth=0
    )
