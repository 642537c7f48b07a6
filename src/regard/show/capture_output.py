"""A capture as a notebook shows it: a picture of its most telling head, and what it does in a sentence.

There is no script and no frame in it, so that it is visible to readers who do not trust the notebook, and on
code hosts. This file knows captures; `viewer` knows how the page is opened.
"""

from __future__ import annotations

import html
from importlib.util import find_spec
from typing import NamedTuple

import torch

from regard.heads.tables.score_words import title
from regard.maps.picture import MOST_ENTRIES, MapPicture, attention_legend, draw_map
from regard.recorder import Capture
from regard.show.data.contents import Contents
from regard.show.data.head_rows import TextHeads
from regard.show.data.map_view.display_precision import for_display
from regard.support.cell_output import bundle, picture_html


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

    picture: MapPicture
    words: str


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
    caption = f"Queries run down, keys run across; {attention_legend(head.picture)}."
    picture = picture_html(head.picture.png, head.words, caption)
    says = f"<p>{html.escape(head.words)}</p>"
    if page:
        picture = f"<details><summary>As a picture</summary>{picture}</details>"
    return bundle(text, f"{about}{says}{picture}{page or how_to_open()}", head.picture.png)


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
    layer, m, _ = contents.head_map(0, key, head)
    shown = for_display(m)
    picture = draw_map(shown, signed=False)
    if picture is None:
        return None
    row = TextHeads(capture, contents.batch_index).row(layer, shown, head)
    label = "no clear pattern" if row["label"] is None else title(row["label"])
    return TellingHead(picture, f"Layer {key}, head {head}: {label}. {row['sentence']}")
