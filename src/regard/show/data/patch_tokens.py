"""The pictures of a capture as the page knows them, and the names of the tokens that are their patches.

A layer of a vision tower has lists of tokens of its own, one for each layout: "patches_0", "patches_1". In a
text, tokens that stand for patches are named by them. This file knows captures; it does not know how the
page draws.
"""

from __future__ import annotations

import base64
from typing import Any

import torch
from torch import Tensor

from regard.pictures.patch_layout import PatchLayout, PatchSpan
from regard.recorder import Capture, Layer
from regard.show.data.layer_description import TARGET, TEXT


def describe_pictures(capture: Capture, entry: int) -> dict[str, Any] | None:
    """Return the pictures of a batch entry as plain data, with the layouts of its lists; None without any.

    A picture that none of the entry's layouts names is null. A span without `places` is in the order of its
    patches, row by row.
    """
    pictures = capture.pictures
    if pictures is None:
        return None
    layouts = {
        list_name(group, pictures.text): _entry_layout(capture, group, entry) for group in _groups(capture)
    }
    shown = {span.picture for layout in layouts.values() for span in layout.spans}
    return {
        "about": pictures.about,
        "images": [
            {
                "src": f"data:image/png;base64,{base64.b64encode(picture.png).decode('ascii')}",
                "width": picture.width,
                "height": picture.height,
            }
            if number in shown
            else None
            for number, picture in enumerate(pictures.images)
        ],
        "layouts": {name: _describe_layout(layout) for name, layout in layouts.items()},
    }


def token_lists(capture: Capture, entry: int) -> dict[str, list[str] | None]:
    """Return the lists of tokens of a batch entry by their names: of its text, and of a vision tower."""
    targets = None if capture.target_tokens is None else capture.target_tokens[entry]
    lists = {TEXT: _name_image_tokens(capture, entry), TARGET: targets}
    pictures = capture.pictures
    if pictures is None:
        return lists
    for key, groups in pictures.axes.items():
        for group, size in zip(groups, capture.layer(key).shape[2:], strict=True):
            if group >= 0 and group != pictures.text:
                layout = _entry_layout(capture, group, entry)
                # U+2005, as in `_shown_name`: an ordinary space is shown as a dot.
                names = [_shown_name(layout, token) or f"token\u2005{token}" for token in range(size)]
                lists[list_name(group, pictures.text)] = names
    return lists


def patch_axes(capture: Capture, key: int | str) -> tuple[str, str] | None:
    """Return the names of the lists of a layer's queries and keys, if it is a layer of a vision tower."""
    pictures = capture.pictures
    key = capture.layer(key).key
    if pictures is None or not pictures.is_tower(key):
        return None
    queries, keys = pictures.axes[key]
    return list_name(queries, pictures.text), list_name(keys, pictures.text)


def _name_image_tokens(capture: Capture, entry: int) -> list[str] | None:
    """Return the tokens of a text, of which those that stand for patches are named by them.

    Without a tokenizer the tokens of a text beside pictures are named by their ids, and others are None.
    """
    tokens = None if capture.tokens is None else capture.tokens[entry]
    pictures = capture.pictures
    if pictures is None or pictures.text < 0 or capture.ids is None:
        return tokens
    layout = _entry_layout(capture, pictures.text, entry)
    own = tokens or [f"<{number}>" for number in capture.ids[entry].tolist()]
    return [_shown_name(layout, number) or token for number, token in enumerate(own)]


def _shown_name(layout: PatchLayout, token: int) -> str | None:
    """The name of a token with spaces of another kind: those of a text are marked on the page."""
    name = layout.name(token)
    return None if name is None else name.replace(" ", "\u2005")


def is_patch(capture: Capture, layer: Layer, entry: int) -> Tensor | None:
    """Return which keys of a layer of a vision tower are patches, (S,); None for other layers."""
    pictures = capture.pictures
    if pictures is None or not pictures.is_tower(layer.key):
        return None
    layout = pictures.layout(layer.key, "keys", entry) or PatchLayout()
    return ~torch.isnan(layout.coordinates(layer.shape[3])[:, 0])


def list_name(group: int, text: int) -> str:
    """Return the name of the list of tokens that a group of layouts describes; `text` is the text's group."""
    return TEXT if group == text else f"patches_{group}"


def _groups(capture: Capture) -> list[int]:
    assert capture.pictures is not None
    return sorted({group for groups in capture.pictures.axes.values() for group in groups if group >= 0})


def _entry_layout(capture: Capture, group: int, entry: int) -> PatchLayout:
    """The layout of a batch entry; an empty one if the group has none."""
    assert capture.pictures is not None
    layouts = capture.pictures.layouts[group]
    return layouts[entry] if entry < len(layouts) else PatchLayout()


def _describe_layout(layout: PatchLayout) -> dict[str, Any]:
    return {
        "spans": [_describe_span(span) for span in layout.spans],
        "special": [[token, name] for token, name in layout.special.items()],
    }


def _describe_span(span: PatchSpan) -> dict[str, Any]:
    # Most towers number their patches row by row; Qwen2-VL orders them in 2 × 2 groups, and needs the list.
    places = None if span.places == tuple(range(span.rows * span.cols)) else list(span.places)
    return {
        "picture": span.picture,
        "first": span.first,
        "rows": span.rows,
        "cols": span.cols,
        "tokens": len(span.places),
        "places": places,
    }
