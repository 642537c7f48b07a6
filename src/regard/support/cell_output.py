"""What a notebook's cell shows of an object: a picture as PNG, HTML, and plain text beside them.

Everything but Matplotlib's figures is drawn here, without a library and without scripts or frames, so that
it is also visible in a notebook that is not trusted or that a code host renders. Text is escaped. This file
knows HTML and Matplotlib; it does not know what is shown.
"""

from __future__ import annotations

import base64
import html
import json
import textwrap
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from regard.support.imports import extra

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


class WrittenReport(PrintedOutput):
    """A printed result that is also JSON."""

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain data that JSON can hold."""
        raise NotImplementedError

    def to_json(self, indent: int | None = 2) -> str:
        """Return the report as JSON, indented by `indent` spaces; None puts it on one line."""
        return json.dumps(self.to_dict(), indent=indent, ensure_ascii=False)


def wrap(text: str, indent: str = "", hanging: str = "", width: int = 100) -> list[str]:
    """Return a text in lines of at most `width` columns, of which all but the first begin with `hanging` too.

    A name such as mask-after-softmax stays whole, to be copied.
    """
    return textwrap.wrap(
        text, width, initial_indent=indent, subsequent_indent=indent + hanging, break_on_hyphens=False
    )


TEXT_IN_FILES: dict[Any, Any] = {"pdf.fonttype": 42, "ps.fonttype": 42, "svg.fonttype": "none"}
"""Matplotlib's settings that write text as text: embedded TrueType fonts in PDF, and <text> in SVG."""

LIVE_BACKENDS = ("ipympl", "widget", "nbagg", "webagg")  # without a window, and shown by pyplot all the same


def new_figure(what: str, size: tuple[float, float]) -> Any:
    """Return a new figure of pyplot's, (width, height) inches, whose files hold text as text.

    `what` names what needs Matplotlib, for the sentence that says how to install it.
    """
    with extra("app", what):
        import matplotlib.pyplot as plt
    return plt.figure(FigureClass=_figure_class(), figsize=size, layout="constrained")


def release(figure: Any) -> Any:
    """Take a finished figure out of pyplot's list, unless a window can show it, and return it.

    A notebook draws what a cell returns, and then every figure that is still in the list: it would appear
    twice. Without windows nothing else needs the list, and a loop of figures would fill the memory.
    """
    import matplotlib.pyplot as plt

    has_window = getattr(figure.canvas, "required_interactive_framework", None) is not None
    if not has_window and not any(name in plt.get_backend().lower() for name in LIVE_BACKENDS):
        plt.close(figure)
    return figure


@cache
def _figure_class() -> type[Any]:
    import matplotlib
    from matplotlib.figure import Figure

    # An rc_context around the drawing would not do: the font type is read when the file is saved, by the
    # caller.
    class TextFigure(Figure):
        """A figure whose files hold text as text, whatever Matplotlib's settings are."""

        def savefig(self, fname: Any, **options: Any) -> None:
            with matplotlib.rc_context(TEXT_IN_FILES):
                super().savefig(fname, **options)

    return TextFigure
