"""A map on Matplotlib axes, its cells and tokens, and the layout of a figure around it: words and colours.

Keys run along the top and queries down the left, as on the page. This file knows maps, labels and words; it
does not know captures.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, cast

import torch
from torch import Tensor

from regard.maps import AttentionMap, DifferenceMap, LinearAttentionMap, SignedMap
from regard.maps.scale_end import overview_edges, scale_end
from regard.show.data.map_view.tiles import attention_of, visible_units
from regard.stages.figures.picture import (
    MAX_NUMBERED_SIDE,
    colour_map,
    colour_scale,
    draw_cells,
    draw_hatch,
    draw_heatmap,
)
from regard.support.cell_output import new_figure
from regard.support.cells import HATCH, HIDDEN

Reduce = Literal["mass", "max"]
Drawable = AttentionMap | SignedMap | Tensor


class FigureCells(NamedTuple):
    """The cells of a figure, and the first query and the first key of each."""

    signed: bool  # whether the colours diverge from 0
    values: Tensor  # (rows, cols)
    hidden: Tensor  # (rows, cols), True where no key is visible
    rows: list[int]
    cols: list[int]

    @property
    def visible(self) -> Tensor:
        """The values that are not hidden, (n,)."""
        return self.values[~self.hidden]


def pool_cells(m: Drawable, reduce: Reduce, most: int) -> FigureCells:
    """Pool a map (T, S) to at most `most` cells along each axis."""
    T, S = m.shape
    if isinstance(m, Tensor):
        values = m.detach().float().cpu()
        hidden = torch.zeros_like(values, dtype=torch.bool)
        return FigureCells(bool((values < 0).any()), values, hidden, list(range(T)), list(range(S)))
    rows, cols = ([i * n // min(n, most) for i in range(min(n, most) + 1)] for n in (T, S))
    values = cast(Tensor, m.pool(rows, cols, reduce)).float().cpu()
    signed = isinstance(m, DifferenceMap) or bool((values < 0).any())
    return FigureCells(signed, values, _hidden_cells(m, rows, cols), rows[:-1], cols[:-1])


def _hidden_cells(m: Any, rows: list[int], cols: list[int]) -> Tensor:
    """Return which cells of a map (T, S), pooled between these edges, hold no visible key."""
    if isinstance(m, DifferenceMap):
        return _hidden_cells(m.left, rows, cols) & _hidden_cells(m.right, rows, cols)
    return ~visible_units(attention_of(m), rows, cols)


def overview_values(m: Drawable, cells: FigureCells, reduce: Reduce) -> Tensor:
    """Return the visible values by which the colours of a map (T, S) are scaled, (n,).

    They are those of `overview_edges`, as on the page.
    """
    if isinstance(m, Tensor):
        return cells.visible
    rows, cols = overview_edges(m.shape)
    values = cast(Tensor, m.pool(rows, cols, reduce)).float().cpu()
    return values[~_hidden_cells(m, rows, cols)]


def cell_scale(cells: FigureCells, overview: Tensor, log: bool, bounded: bool) -> Any:
    """Return the Matplotlib norm that maps cells to colours, which end where those of `overview` do.

    `bounded` numbers are never above 1.
    """
    # or 1.0: a map of zeros has no end, and a norm from 0 to 0 would divide by 0.
    top = scale_end(overview, 1.0 if bounded else math.inf) or 1.0
    # A logarithmic scale has no 0: it begins at the power of ten below uniform attention.
    floor = 10.0 ** math.floor(math.log10(0.3 / cells.values.shape[1]))  # below uniform attention
    bottom = min(floor, top / 10) if bounded else top / 1000
    return colour_scale(top, log, cells.signed, bottom=bottom)


INK, SOFT, WARNING = "#1d2026", "#555a64", "#9b1c31"
PAD = 0.14  # inches around the figure, and between its parts
NARROWEST = 4.4  # inches
BAR = (2.3, 0.1)  # inches of the colour bar
LETTER = 0.5  # width of most letters, in heights


class FigureWords(NamedTuple):
    """The words around a figure's picture."""

    heading: str = ""
    lines: Sequence[str] = ()
    notes: Sequence[str] = ()
    warning: str = ""


class TextLine(NamedTuple):
    """A line of words: its text, its height in points, its colour and weight."""

    text: str
    size: float
    colour: str
    weight: str = "normal"

    @property
    def inches(self) -> float:
        """The height that it takes."""
        return self.size * 1.4 / 72


def lay_out(words: FigureWords, size: tuple[float, float]) -> tuple[Any, Any]:
    """Return a new figure with its words written, and the axes for a map of (width, height) inches."""
    width = max(NARROWEST, size[0] + 1.2)
    head = [
        *_wrap(words.heading, 11.0, INK, width, "bold"),
        *(line for text in words.lines for line in _wrap(text, 8.5, SOFT, width)),
        *_wrap(words.warning, 8.5, WARNING, width),
    ]
    foot = [line for text in words.notes for line in _wrap(text, 7.5, SOFT, width)]
    above = sum(line.inches for line in head) + 2 * PAD
    below = sum(line.inches for line in foot) + 0.42 + PAD
    height = above + size[1] + 1.0 + below
    figure = new_figure("a figure", (width, height))
    figure.get_layout_engine().set(
        rect=(0, below / height, 1, 1 - (above + below) / height), w_pad=PAD, h_pad=0.02
    )
    axes = figure.subplots()
    _write(figure, head, height - PAD)
    _write(figure, foot, below - 0.42)
    return figure, axes


def _wrap(text: str, size: float, colour: str, width: float, weight: str = "normal") -> list[TextLine]:
    letters = int((width - 2 * PAD) * 72 / (size * LETTER))
    return [TextLine(line, size, colour, weight) for line in textwrap.wrap(text, letters)]


def _write(figure: Any, lines: Sequence[TextLine], top: float) -> None:
    """Write lines from `top` inches downwards."""
    width, height = figure.get_size_inches()
    for text, size, colour, weight in lines:
        # parse_math=False: names of models and texts may hold dollar signs.
        style = {"fontsize": size, "color": colour, "fontweight": weight, "parse_math": False}
        figure.text(PAD / width, top / height, text, va="top", ha="left", **style)
        top -= size * 1.4 / 72


def draw_keys(figure: Any, image: Any, *, clipped: bool, hidden: bool) -> None:
    """Draw the colour bar, and the pattern of hidden cells if there are any, below the map."""
    width, height = figure.get_size_inches()
    bottom = figure.get_layout_engine().get()["rect"][1] - 0.14 / height
    place = figure.add_axes((PAD / width, bottom, BAR[0] / width, BAR[1] / height))
    bar = figure.colorbar(image, cax=place, orientation="horizontal")
    bar.outline.set_visible(False)
    low, high = image.norm.vmin, image.norm.vmax
    # The middle of a logarithmic scale is no arithmetic mean.
    middle = 0.0 if low < 0 else float(image.norm.inverse(0.5))
    # The minus sign of Unicode, as Matplotlib writes its own ticks.
    names = [f"{x:.3g}".replace("-", "−") for x in (low, middle, high)]
    if clipped:
        names[-1] = f"≥ {names[-1]}"
        names[0] = f"≤ {names[0]}" if low < 0 else names[0]
    bar.set_ticks([low, middle, high], labels=names)
    bar.ax.minorticks_off()
    bar.ax.tick_params(labelsize=7.5, length=0, colors=SOFT)
    for label, side in zip(bar.ax.get_xticklabels(), ("left", "center", "right"), strict=True):
        label.set_ha(side)
    if hidden:
        _draw_hatch_key(figure, (BAR[0] + 3 * PAD) / width, bottom)


def _draw_hatch_key(figure: Any, x: float, y: float) -> None:
    from matplotlib.patches import Rectangle

    width, height = figure.get_size_inches()
    style: dict[str, Any] = {"facecolor": HIDDEN, "edgecolor": HATCH, "hatch": "///", "linewidth": 0.5}
    swatch = Rectangle((x, y), 0.25 / width, 0.12 / height, transform=figure.transFigure, **style)
    figure.add_artist(swatch)
    figure.text(
        x + 0.32 / width, y + 0.06 / height, "hidden by the mask", fontsize=7.5, color=SOFT, va="center"
    )


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
