"""The layout of a figure of one head, as the page exports it: words, the map, and what its colours mean.

This file knows words, an image and its scale; it does not know maps or captures.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any, NamedTuple

from regard.stages.figures.picture import HATCH, HIDDEN
from regard.support.cell_output import new_figure

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
