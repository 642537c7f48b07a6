"""Pictures of what layers see on a batch: a page of them, and characters for a terminal."""

from __future__ import annotations

import html
from importlib.resources import files
from string import Template
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from regard.auditor.inside import LayerReading, layers_title
from regard.support.cell_output import colour_bytes, enlarge, picture_html
from regard.support.png import encode_png

MOST_CELLS = 256  # to a side of a picture; of a longer text, this many rows and columns are drawn
TERMINAL_CELLS = 32
HIDDEN, SEEN, LEAKED, LOST = range(4)
COLOURS = ("#f2f2f2", "#3b6ea5", "#d62728", "#ff9f1c")
CHARACTERS = ("·", "█", "X", "o")
LEGEND = (
    "Queries run down, keys across. █ is seen, · is not; X is seen and should not be, o should be and is not."
)


def cells_of(layer: LayerReading, most: int) -> tuple[Tensor, int]:
    """Return what a layer sees of one text, one number a cell, and the number of that text.

    Arguments:
        layer: the layer.
        most: the most rows and columns; of a longer text, some at equal distances.

    The text is the first in which something is wrong. A cell is 0 where nothing is seen, 1 where it is seen,
    2 where it is seen and should not be, 3 where it should be and is not. Heads are joined.
    """
    assert layer.heard_mask is not None
    firsts = [cells.first for cells in layer.wrong.values() if cells.first is not None]
    text = min(firsts).text if firsts else 0
    _, _, T, S = layer.shape
    rows, keys = (torch.linspace(0, n - 1, min(n, most), device="cpu").round().long() for n in (T, S))
    seen = _one_text(layer.heard_mask.tile(rows, keys, layer.shape), text)
    cells = seen.long()
    if layer.expected_mask is not None:
        expected = _one_text(layer.expected_mask.tile(rows, keys, layer.shape), text)
        # What padding sees counts for nothing.
        counts = torch.ones_like(rows, dtype=torch.bool) if layer.real is None else layer.real[text][rows]
        cells[seen & ~expected & counts[:, None]] = LEAKED
        cells[expected & ~seen & counts[:, None]] = LOST
    return cells, text


def _one_text(tile: Tensor, text: int) -> Tensor:
    if tile.ndim == 2:
        return tile.cpu()
    return tile[min(text, len(tile) - 1)].any(0).cpu()


class Section(NamedTuple):
    """What one audit adds to a page."""

    title: str
    """What the model has read, if the page has several sections."""
    summary: str
    """The verdict in one line."""
    report: str
    groups: list[list[LayerReading]]
    """Layers that see the same, each with a picture."""


def page(subject: str, sections: list[Section]) -> str:
    """Return audits as a page of HTML that needs nothing else.

    Arguments:
        subject: the model's name.
        sections: an audit each.
    """
    body = "".join(
        (f"<h2>{html.escape(section.title)}</h2>" if section.title else "")
        + f"<p class=verdict>{html.escape(section.summary)}</p>"
        + f"<section>{''.join(map(_figure, section.groups))}</section>"
        + f"<pre>{html.escape(section.report)}</pre>"
        for section in sections
    )
    meanings = ("not seen", "seen", "seen, and should not be", "not seen, and should be")
    key = "".join(
        f'<span><i style="background:{colour}"></i>{words}</span>'
        for colour, words in zip(COLOURS, meanings, strict=True)
    )
    template = Template(files("regard.auditor").joinpath("page.html").read_text("utf-8"))
    return template.substitute(subject=html.escape(subject), key=key, body=body)


def _figure(layers: list[LayerReading]) -> str:
    cells, text = cells_of(layers[0], MOST_CELLS)
    pixels = enlarge(colour_bytes(COLOURS)[cells.numpy().astype(np.int64)])
    expected = f"; it should see {layers[0].expected}" if layers[0].expected else ""
    caption = f"{layers_title(layers).capitalize()}, text {text}: {layers[0].mask}{expected}"
    return picture_html(encode_png(pixels), caption, caption)


def terminal_picture(layer: LayerReading) -> str:
    """Return what a layer sees of one text as lines of characters, one a cell, and which text it is."""
    cells, text = cells_of(layer, TERMINAL_CELLS)
    T = layer.shape[2]
    some = f", {len(cells)} of its {T} queries" if len(cells) < T else ""
    # A character of a terminal is about twice as high as wide.
    return f"text {text}{some}\n" + "\n".join(
        "".join(CHARACTERS[cell] * 2 for cell in row) for row in cells.tolist()
    )
