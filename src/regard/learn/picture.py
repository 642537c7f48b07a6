"""The picture of the learner's own weights: in the terminal, and as an SVG for the lesson's page.

From plain numbers, since PyTorch and Matplotlib take seconds to start and the answer should come at once.
"""

from __future__ import annotations

import html
from pathlib import Path
from typing import Any

from regard.learn.lesson import WeightPicture
from regard.support.cells import ink, print_cells, shade
from regard.support.files import atomic_write

CELL, LINE = 46, 17  # pixels: the side of a cell, the height of a line of text
HIDDEN, TEXT = "#f7f6f3", "#10131a"


def print_picture(console: Any, picture: WeightPicture) -> None:
    """Print weights on a Rich console, one heatmap for each title, all on one colour scale."""
    for title, weights in zip(picture.titles, picture.weights, strict=True):
        console.print(f"\n{title}: one row for each query", markup=False)
        print_cells(
            console, weights, picture.rows, picture.cols, hidden=_hidden(weights), top=_largest(picture)
        )


def save_picture(picture: WeightPicture, path: Path) -> None:
    """Save weights as an SVG, one heatmap for each title, all on one colour scale."""
    left = 9 * max(map(len, picture.rows)) + LINE
    top = 3 * LINE + 6 * max(map(len, picture.cols))  # room for the labels of the columns, which are slanted
    width, height = left + CELL * len(picture.cols) + 4 * LINE, top + CELL * len(picture.rows) + 2 * LINE
    parts = [
        f"<g transform='translate({number * width} 0)'>{_heatmap(picture, number, left, top)}</g>"
        for number in range(len(picture.titles))
    ]
    total = width * len(parts)
    with atomic_write(path) as file:
        file.write_text(
            f"<svg xmlns='http://www.w3.org/2000/svg' width='{total}' height='{height}' "
            f"viewBox='0 0 {total} {height}' font-family='sans-serif' font-size='13' fill='{TEXT}'>"
            f"<rect width='{total}' height='{height}' fill='#ffffff'/>{''.join(parts)}</svg>\n",
            encoding="utf-8",
        )


def _heatmap(picture: WeightPicture, number: int, left: int, top: int) -> str:
    weights = picture.weights[number]
    bottom = top + CELL * len(weights) + LINE
    parts = [
        _text(LINE, LINE, picture.titles[number], "font-weight='bold'"),
        _text(left, bottom, "row: the query; column: the key that it attends to"),
    ]
    for i, (label, row) in enumerate(zip(picture.rows, weights, strict=True)):
        middle = top + CELL * i + CELL // 2 + 5
        parts.append(_text(left - 8, middle, label, "text-anchor='end'"))
        for j, weight in enumerate(row):
            parts.append(_cell(left + CELL * j, top + CELL * i, weight, weight / _largest(picture)))
    for j, label in enumerate(picture.cols):
        x, y = left + CELL * j + CELL // 2, top - 6
        parts.append(_text(x, y, label, f"transform='rotate(-35 {x} {y})'"))
    return "".join(parts)


def _cell(x: int, y: int, weight: float, share: float) -> str:
    """A cell with its number; a hidden one is empty."""
    side = f"x='{x}' y='{y}' width='{CELL - 1}' height='{CELL - 1}'"
    if weight == 0:
        return f"<rect {side} fill='{HIDDEN}'/>"
    style = f"text-anchor='middle' fill='{ink(share)}'"
    number = _text(x + CELL // 2, y + CELL // 2 + 5, f"{weight:.2f}", style)
    return f"<rect {side} fill='{shade(share)}'/>{number}"


def _text(x: int, y: int, text: str, style: str = "") -> str:
    return f"<text x='{x}' y='{y}' {style}>{html.escape(text)}</text>"


def _largest(picture: WeightPicture) -> float:
    """The largest weight of a picture, or 1 if all are 0."""
    return max(weight for weights in picture.weights for row in weights for weight in row) or 1.0


def _hidden(weights: list[list[float]]) -> list[list[bool]]:
    """Which cells to draw as hidden: weights that are exactly 0, as only a mask makes them."""
    return [[weight == 0 for weight in row] for row in weights]
