"""A map on Matplotlib axes: its cells, the tokens along both axes, and where generation begins.

Keys run along the top and queries down the left, as on the page. This file knows maps and labels; it does not
know captures or the words around a figure.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.maps import AttentionMap, DifferenceMap, LinearAttentionMap
from regard.show.figure_cells import Drawable, FigureCells, Reduce, cell_scale, overview_values, pool_cells
from regard.stages.figures.picture import MAX_NUMBERED_SIDE, colour_map, draw_cells, draw_hatch, draw_heatmap

MOST_TOKENS = 64  # a longer axis is labelled with a few of its tokens and their positions
MOST_CELLS = 512  # a longer axis is pooled: a figure has no room for more
SMALL_CELLS = 128  # the same in a panel among others
TICKS = 10  # labels on a longer axis
BOUNDARY = "#b8430f"
UPRIGHT = {"rotation": 90, "rotation_mode": "default", "ha": "center", "va": "bottom"}


class Labels(NamedTuple):
    """The labels of both axes."""

    queries: list[str]
    keys: list[str]
    boundary: int | None
    """The position of the first generated token."""


class DrawnMap(NamedTuple):
    """What was drawn: the image, and what its legend must explain."""

    image: Any
    clipped: bool
    """Whether some numbers lie beyond the end of the colours."""
    hidden: bool
    """Whether the mask hides some cells."""


def draw_map(
    ax: Any,
    m: Drawable,
    labels: Labels,
    *,
    fontsize: float,
    log: bool,
    reduce: Reduce,
    small: bool = False,
) -> DrawnMap:
    """Draw one head on axes; `small` panels have few labels and no numbers."""
    cells = pool_cells(m, reduce, SMALL_CELLS if small else MOST_CELLS)
    # Contributions and linear weights may exceed 1; weights and their differences cannot.
    bounded = isinstance(m, AttentionMap | DifferenceMap | Tensor)
    norm = cell_scale(cells, overview_values(m, cells, reduce), log, bounded)
    most_tokens = MAX_NUMBERED_SIDE if small else MOST_TOKENS
    if max(m.shape) <= MAX_NUMBERED_SIDE and not small:
        image = draw_heatmap(
            ax,
            cells.values,
            labels.queries,
            labels.keys,
            hidden=cells.hidden,
            fontsize=fontsize,
            norm=norm,
            signed=cells.signed,
        )
    else:
        if cells.hidden.any():
            draw_hatch(ax, cells.values.shape)
        visible = cells.values.masked_fill(cells.hidden, torch.nan)
        image = draw_cells(ax, visible, colour_map(cells.signed), norm)
        ax.tick_params(length=2, color="#9a9ba3")
        ax.spines[:].set_visible(False)
    ax.xaxis.tick_top()
    ax.xaxis.set_label_position("top")
    _set_ticks(ax.xaxis, labels.keys, cells.cols, most_tokens, fontsize=fontsize, **UPRIGHT)
    _set_ticks(ax.yaxis, labels.queries, cells.rows, most_tokens, fontsize=fontsize)
    ax.set_xlabel("key (attended to)", fontsize=fontsize + 1, loc="left")
    ax.set_ylabel("query", fontsize=fontsize + 1, loc="top")
    if labels.boundary is not None:
        _mark_boundary(ax, labels.boundary, m.shape, cells)
    # 1e-6: cells are float32, and one that is exactly at the end is not beyond it.
    clipped = bool((cells.visible.abs() > norm.vmax * (1 + 1e-6)).any())
    return DrawnMap(image, clipped, bool(cells.hidden.any()))


def _set_ticks(axis: Any, tokens: list[str], starts: list[int], most: int, **text: Any) -> None:
    """Label an axis with all its tokens if there are at most `most`, else with a few and their positions."""
    n, count = len(tokens), len(starts)
    if n <= most:
        cells, names = list(range(n)), tokens
    else:
        ticks = TICKS if most == MOST_TOKENS else TICKS // 2
        cells = [i * (count - 1) // (ticks - 1) for i in range(ticks)]
        positions = [starts[cell] for cell in cells]
        names = [str(i) if tokens[i] == str(i) else f"{i:,} {tokens[i]}" for i in positions]
    # parse_math=False: a token with two dollar signs would be read as a formula, and most are none.
    axis.set_ticks(cells, names, parse_math=False, **text)


def _mark_boundary(ax: Any, boundary: int, shape: tuple[int, ...], cells: FigureCells) -> None:
    """Draw a line before the first generated token, across the keys and, if it is a query, the queries."""
    T, S = shape
    line = {"color": BOUNDARY, "linewidth": 1.0, "linestyle": (0, (4, 3)), "gid": "boundary"}
    across = _cell_at(cells.cols, S, boundary)
    ax.axvline(across, **line)
    if 0 < (first := boundary - (S - T)) < T:
        ax.axhline(_cell_at(cells.rows, T, first), **line)
    ax.annotate(
        "generated →",
        (across, 0.0),
        xycoords=("data", "axes fraction"),
        xytext=(3, -9),
        textcoords="offset points",
        fontsize=7,
        color=BOUNDARY,
    )


def _cell_at(starts: list[int], n: int, position: int) -> float:
    """Return where a position begins in an image's coordinates, in which the first cell begins at −0.5."""
    return position * len(starts) / n - 0.5


def describe_cell(m: Drawable, reduce: Reduce, log: bool) -> str:
    """Return a sentence that says what a cell of a figure stands for, and names the scale of the colours."""
    scale = "The colours are logarithmic." if log else "The colours are linear."
    entry = (
        "weight"
        if isinstance(m, AttentionMap | LinearAttentionMap | Tensor)
        else "weight × factor of the key"
    )
    if isinstance(m, DifferenceMap):
        entry = "difference of two weights"
    if isinstance(m, Tensor) or max(m.shape) <= MOST_CELLS:
        return f"One cell is one {entry}. {scale}"
    if reduce == "max":
        return f"One cell is the greatest {entry} in it. {scale}"
    what = "attention mass" if entry == "weight" else f"the {entry}"
    return f"One cell is {what}, summed over keys and averaged over queries. {scale}"
