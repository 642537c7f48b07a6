"""What a notebook's cell shows of an object: a picture as PNG, a table as HTML, and plain text beside them.

Everything is drawn here, without a library and without scripts or frames, so that it is also visible in a
notebook that is not trusted or that a code host renders. Text is escaped. This file knows HTML; it does
not know what is shown.
"""

from __future__ import annotations

import base64
import html
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

MOST_ROWS = 64  # of a table in a cell
SIDE = 320  # pixels to which small pictures are enlarged


def enlarge(
    pixels: np.ndarray[Any, np.dtype[np.uint8]], side: int = SIDE
) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Repeat the pixels (height, width, 3) of a small picture until its longer side has about `side`."""
    times = max(1, side // max(pixels.shape[:2]))
    return pixels.repeat(times, 0).repeat(times, 1)


def colour_bytes(colours: Sequence[str]) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return colours #rrggbb as bytes (n, 3)."""
    return np.array([list(bytes.fromhex(colour[1:])) for colour in colours], np.uint8)


def picture_html(png: bytes, description: str, caption: str = "") -> str:
    """Return a picture and its caption; `description` is for readers who do not see it."""
    address = f"data:image/png;base64,{base64.b64encode(png).decode()}"
    below = f"<figcaption>{html.escape(caption)}</figcaption>" if caption else ""
    picture = f'<img src="{address}" alt="{html.escape(description)}" style="max-width:100%">'
    return f'<figure style="margin:0">{picture}{below}</figure>'


def table_html(names: Sequence[str], rows: Iterable[Sequence[object]], caption: str = "") -> str:
    """Return a table with a heading; rows beyond the first `MOST_ROWS` are counted instead of shown.

    A cell that is a number is set right, everything else left.
    """
    every = list(rows)
    head = "".join(f"<th>{html.escape(name)}</th>" for name in names)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in every[:MOST_ROWS])
    more = f" The first {MOST_ROWS} of {len(every):,} rows." if len(every) > MOST_ROWS else ""
    below = f"<p>{html.escape(caption)}{more}</p>" if caption or more else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{below}"


def bundle(text: str, page: str, png: bytes | None = None) -> dict[str, str]:
    """Return what `_repr_mimebundle_` gives: plain text, HTML and, if there is one, a picture."""
    both = {"text/plain": text, "text/html": page}
    return both if png is None else {**both, "image/png": base64.b64encode(png).decode()}


def text_output(text: str) -> dict[str, str]:
    """Return what `_repr_mimebundle_` gives of an object that prints as a text of several lines."""
    return bundle(text, f"<pre>{html.escape(text)}</pre>")


class PrintedOutput:
    """A result that a notebook shows as `print` does."""

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        return text_output(str(self))


def _cell(value: object) -> str:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    side = "right" if is_number else "left"
    return f'<td style="text-align:{side}">{html.escape(str(value))}</td>'
