"""The picture of a re-run result: panels of lines or bars, kept as numbers and drawn with Matplotlib."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from textwrap import fill
from typing import Any, Literal

from regard.support.cell_output import new_figure, release

# Okabe and Ito's colours, which readers with any colour vision can tell apart.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")


@dataclass(frozen=True)
class Chart:
    """One panel.

    Lines are `{label: [[x, y], …]}`; bars are `{label: [[place, height], …]}`, with a name for each place in
    `places`. Vertical lines in `marks` are events, as `{"first alarm": 120}`.
    """

    title: str
    x: str
    y: str
    lines: Mapping[str, Sequence[Sequence[float]]]
    kind: Literal["lines", "bars"] = "lines"
    places: Sequence[str] = ()
    marks: Mapping[str, float] = field(default_factory=dict)
    log_x: bool = False
    log_y: bool = False
    baseline: float | None = None
    """A horizontal line, as that of guessing."""


def points(ys: Iterable[Any], xs: Iterable[Any] | None = None) -> list[list[float]]:
    """The points of a line, of numbers or of a tensor; `xs` are 0, 1, 2 … by default."""
    return [[float(x), float(y)] for x, y in zip(count() if xs is None else xs, ys, strict=False)]


def bar_chart(
    title: str, y: str, heights: Mapping[str, Iterable[Any]], places: Sequence[str] = ("",)
) -> Chart:
    """A panel of bars: for every label the heights at all places."""
    return Chart(title, "", y, {label: points(ys) for label, ys in heights.items()}, "bars", places)


def format_means(*samples: Any, form: str = ".3f") -> str:
    """The means of tensors as text, one after another."""
    return ", ".join(f"{float(x.mean()):{form}}" for x in samples)


def draw(charts: Sequence[Chart]) -> Any:
    """Draw the panels next to each other, and return the Matplotlib figure."""
    figure = new_figure("a picture of a reproduced result", (4.2 * len(charts), 3.4))
    for chart, ax in zip(charts, figure.subplots(1, len(charts), squeeze=False)[0], strict=True):
        _draw_panel(chart, ax)
    return release(figure)


def _draw_panel(chart: Chart, ax: Any) -> None:
    width = 0.8 / max(len(chart.lines), 1)
    for number, (label, points) in enumerate(chart.lines.items()):
        colour = COLOURS[number % len(COLOURS)]
        xs, ys = [point[0] for point in points], [point[1] for point in points]
        if chart.kind == "bars":
            left = [x + (number - (len(chart.lines) - 1) / 2) * width for x in xs]
            ax.bar(left, ys, width * 0.95, color=colour, label=label)
        else:
            ax.plot(xs, ys, color=colour, label=label, linewidth=1.4)
    for (label, place), style in zip(chart.marks.items(), (":", "--", "-.") * 3, strict=False):
        ax.axvline(place, color="#444444", linestyle=style, linewidth=1, label=label)
    if chart.baseline is not None:
        ax.axhline(chart.baseline, color="#888888", linewidth=1)
    if chart.places:
        # A name is as narrow as its bar allows: eviction has six, of which one is "window and first 4".
        width = max(6, 42 // len(chart.places))
        ax.set_xticks(range(len(chart.places)), [fill(name, width) for name in chart.places])
    if chart.log_x:
        ax.set_xscale("log")
    if chart.log_y:
        ax.set_yscale("log")
    ax.set_xlabel(chart.x)
    ax.set_ylabel(chart.y)
    ax.set_title(chart.title, fontsize=10)
    ax.grid(alpha=0.3)
    if len(chart.lines) > 1 or chart.marks:
        ax.legend(fontsize=7)
