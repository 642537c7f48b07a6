"""A capture as a notebook shows it: the figure of its most telling head, and what it does in a sentence.

There is no script and no frame in it, so that it is visible to readers who do not trust the notebook, and on
code hosts. The picture is a PNG, since some of them leave out SVG. This file knows
captures; `viewer` knows how the page is opened.
"""

from __future__ import annotations

import html
import io
import warnings
from importlib.util import find_spec
from typing import NamedTuple

import torch

from regard.heads.tables.score_words import title
from regard.maps.picture import MOST_ENTRIES, attention_legend, draw_map
from regard.recorder import Capture
from regard.show.data.contents import Contents
from regard.show.data.head_rows import TextHeads
from regard.show.data.map_view.display_precision import for_display
from regard.show.figures import figure, legible
from regard.support.cell_output import bundle, picture_html

DOTS = 90  # of the figure, to an inch
COLOURS = 64  # of the figure


def how_to_open() -> str:
    """Return a line of HTML that says how the page is opened."""
    # find_spec does not import anywidget, which is not needed to say so.
    is_installed = find_spec("anywidget") is not None
    needs = "" if is_installed else ' (after <code>pip install "regard[widget]"</code>)'
    return (
        f"<p><code>seen.widget()</code> opens the page here{needs}; <code>seen.show(block=False)</code> "
        "opens it in a browser, <code>seen.to_html('page.html')</code> writes it to a file.</p>"
    )


class TellingHead(NamedTuple):
    """The head that a reader sees first, and what it does."""

    png: bytes
    words: str
    """What it does."""
    edge: str
    """Which token attends most to which other one."""
    legend: str
    """What the colours mean; "" where the picture says it itself."""


def capture_output(capture: Capture, page: str = "") -> dict[str, str]:
    """Return what a notebook shows of a capture.

    Arguments:
        capture: the capture.
        page: HTML of the page itself, which is put below; then the picture is folded, for readers whose
            notebook leaves the page out.
    """
    text = repr(capture)
    about = f"<p><code>{html.escape(text)}</code></p>"
    head = find_telling_head(capture)
    if head is None:
        return bundle(text, f"{about}{page or how_to_open()}" if capture.layers else about)
    picture = picture_html(head.png, head.words, head.legend)
    says = f"<p>{html.escape(f'{head.words} {head.edge}')}</p>"
    if page:
        picture = f"<details><summary>As a picture</summary>{picture}</details>"
    return bundle(text, f"{about}{says}{picture}{page or how_to_open()}", head.png)


@torch.no_grad()
def find_telling_head(capture: Capture) -> TellingHead | None:
    """Return the most telling head of a capture; None if it has none, or a map too large to be drawn."""
    # A cell that is merely displayed must not compute for minutes.
    if not capture.layers or max(layer.shape[2] * layer.shape[3] for layer in capture.layers) > MOST_ENTRIES:
        return None
    contents = Contents(capture)
    if contents.start is None:
        return None
    key, head = contents.start
    layer, m, _ = contents[0].head_map(key, head)
    shown = for_display(m)
    row = TextHeads(capture, contents.batch_index).row(layer, shown, head)
    label = "no clear pattern" if row["label"] is None else title(row["label"])
    words = f"Layer {key}, head {head}: {label}. {row['sentence']}"
    edge = _strongest_edge(contents, key, head)
    # Tokens on the axes need a font, and fonts need Matplotlib.
    if find_spec("matplotlib") is not None:
        return TellingHead(_draw_figure(capture, key, head, contents.batch_index), words, edge, "")
    picture = draw_map(shown, signed=False)
    if picture is None:
        return None
    legend = f"Queries run down, keys run across; {attention_legend(picture)}."
    return TellingHead(picture.png, words, edge, legend)


def _strongest_edge(contents: Contents, key: str, head: int) -> str:
    """Return which token the telling token attends to most, in words; "" if tokens are not known."""
    text = contents[0]
    axes, query = text.tokens_of(text.layer(key)), text.telling(contents.start)
    if axes.queries is None or axes.keys is None:
        return ""
    weights = text.row(key, head, query)
    strongest = int(weights.argmax())
    place = f"{legible(axes.queries[query])} ({query}) → {legible(axes.keys[strongest])} ({strongest})"
    return f"{place}: {float(weights[strongest]):.0%}."


def _draw_figure(capture: Capture, key: str, head: int, batch: int) -> bytes:
    """Return the figure of a head as a PNG, in so few colours that a notebook's file stays small."""
    from PIL import Image  # Matplotlib needs Pillow itself

    drawn, file = io.BytesIO(), io.BytesIO()
    with warnings.catch_warnings():
        # Matplotlib's font has no Chinese and no ␀: it draws boxes, and warns about each of them.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure(capture, key, head, batch=batch).savefig(drawn, format="png", dpi=DOTS, bbox_inches="tight")
    Image.open(drawn).convert("RGB").quantize(COLOURS).save(file, "png", optimize=True)
    return file.getvalue()
