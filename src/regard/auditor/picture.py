"""Pictures of what layers see on a batch: a page of them, and characters for a terminal."""

from __future__ import annotations

import html

import numpy as np
import torch
from torch import Tensor

from regard.auditor.inside import LayerReading, layer_keys
from regard.cell_output import colour_bytes, enlarge, picture_html
from regard.png import encode_png

MOST_CELLS = 256  # to a side of a picture; of a longer text, this many rows and columns are drawn
TERMINAL_CELLS = 32
HIDDEN, SEEN, LEAKED, LOST = range(4)
COLOURS = ("#f2f2f2", "#3b6ea5", "#d62728", "#ff9f1c")
CHARACTERS = ("·", "█", "X", "o")
COLOUR_LEGEND = "seen, not seen; red is seen and should not be, orange is not seen and should be"
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
        cells[seen & ~expected] = LEAKED
        cells[expected & ~seen] = LOST
    return cells, text


def _one_text(tile: Tensor, text: int) -> Tensor:
    """Return which cells of one text any head sees."""
    if tile.ndim == 2:
        return tile.cpu()
    return tile[min(text, len(tile) - 1)].any(0).cpu()


def page(subject: str, summary: str, report: str, groups: list[list[LayerReading]]) -> str:
    """Return an audit as a page of HTML that needs nothing else.

    Arguments:
        subject: the model's name.
        summary: the verdict in one line.
        report: the whole report.
        groups: layers that see the same, each with a picture.
    """
    figures = []
    for layers in groups:
        cells, text = cells_of(layers[0], MOST_CELLS)
        pixels = enlarge(colour_bytes(COLOURS)[cells.numpy().astype(np.int64)])
        expected = f"; it should see {layers[0].expected}" if layers[0].expected else ""
        caption = f"Layers {layer_keys(layers)}, text {text}: {layers[0].mask}{expected}"
        figures.append(picture_html(encode_png(pixels), caption, caption))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; img-src data:; '
        "style-src 'unsafe-inline'\">"
        f"<title>{html.escape(subject)}: what it reads</title>"
        "<style>body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}"
        "pre{white-space:pre-wrap}section{display:flex;flex-wrap:wrap;gap:1.5rem}figure{max-width:20rem}"
        "img{image-rendering:pixelated;width:100%}</style></head><body>"
        f"<h1>{html.escape(summary)}</h1><section>{''.join(figures)}</section>"
        f"<p>Queries run down, keys across: blue and grey are {COLOUR_LEGEND}.</p>"
        f"<pre>{html.escape(report)}</pre></body></html>"
    )


def terminal_picture(layer: LayerReading) -> str:
    """Return what a layer sees of one text as lines of characters, one a cell, and which text it is."""
    cells, text = cells_of(layer, TERMINAL_CELLS)
    T = layer.shape[2]
    some = f", {len(cells)} of its {T} queries" if len(cells) < T else ""
    return f"text {text}{some}\n" + "\n".join(
        "".join(CHARACTERS[cell] * 2 for cell in row) for row in cells.tolist()
    )
