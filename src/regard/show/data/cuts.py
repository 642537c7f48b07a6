"""Cuts: what an edited run leaves out of a model, as the page names it. They are plain data.

A head can be cut, or edges: those from some queries to some keys, of one head or of all heads of a layer.
This file knows layers, heads and positions; a function that the caller of the server supplies runs the model.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from regard.attention.arguments import check_whole_number
from regard.recorder import Capture, Layer

MAX_CUTS = 64  # of one run


@dataclass(frozen=True)
class HeadCut:
    """The output of a head is replaced by zeros."""

    layer: str
    head: int

    def to_data(self) -> dict[str, Any]:
        """Return it as JSON can hold it."""
        return {"kind": "head", "layer": self.layer, "head": self.head}


@dataclass(frozen=True)
class EdgeCut:
    """Edges are cut before the softmax: those from each query in a span to each key in a span."""

    layer: str
    head: int | None
    """None means every head of the layer."""
    queries: tuple[int, int]
    """The first position and the one after the last, as in a slice."""
    keys: tuple[int, int]

    def to_data(self) -> dict[str, Any]:
        """Return it as JSON can hold it."""
        spans = {"queries": list(self.queries), "keys": list(self.keys)}
        return {"kind": "edges", "layer": self.layer, "head": self.head, **spans}


Cut = HeadCut | EdgeCut


def parse_cuts(data: object, capture: Capture) -> list[Cut]:
    """Check a request's list of cuts against the capture of the text that they are made in.

    Raises KeyError for a layer or head that was not captured, and ValueError for anything else that is wrong.
    A cut that occurs twice counts once.
    """
    if not isinstance(data, list) or not 1 <= len(data) <= MAX_CUTS:
        got = f"{len(data)} of them" if isinstance(data, list) else type(data).__name__
        raise ValueError(f"cuts: expected a list of 1 to {MAX_CUTS} cuts, got {got}")
    # dict.fromkeys keeps the order in which the reader made them.
    return list(dict.fromkeys(_parse_cut(item, capture) for item in data))


def random_cuts(cuts: Sequence[Cut], capture: Capture) -> list[Cut] | None:
    """Return the same cuts in other heads, drawn at random; the same cuts get the same draw.

    Returns None if there are too few other heads, or if a cut is of all heads of a layer.
    """
    heads = list(dict.fromkeys((cut.layer, cut.head) for cut in cuts))
    every = [(str(layer.key), head) for layer in capture.layers for head in layer.heads]
    others = [place for place in every if place not in heads]
    if len(others) < len(heads) or any(head is None for _, head in heads):
        return None
    drawn = dict(zip(heads, random.Random(repr(heads)).sample(others, len(heads)), strict=True))
    places = [drawn[cut.layer, cut.head] for cut in cuts]
    return [replace(cut, layer=layer, head=head) for cut, (layer, head) in zip(cuts, places, strict=True)]


def _parse_cut(data: object, capture: Capture) -> Cut:
    if not isinstance(data, Mapping) or data.get("kind") not in ("head", "edges"):
        raise ValueError('cuts: expected each to be an object whose kind is "head" or "edges", got another')
    key = data.get("layer")
    if not isinstance(key, str):
        raise ValueError(f"layer: expected the key of a layer as text, got {type(key).__name__}")
    layer = capture.layer(key)
    head = data.get("head")
    if data["kind"] == "head":
        return HeadCut(str(layer.key), _check_head(head, layer))
    head = None if head is None else _check_head(head, layer)
    T, S = layer.shape[2:]
    queries, keys = _check_span("queries", data.get("queries"), T), _check_span("keys", data.get("keys"), S)
    return EdgeCut(str(layer.key), head, queries, keys)


def _check_head(head: object, layer: Layer) -> int:
    # The largest number alone is no check: a capture may hold some heads of a layer, as one rank's.
    number = check_whole_number("head", head, 0, max(layer.heads))
    if number not in layer.heads:
        raise KeyError(f"head: expected one of {list(layer.heads)}, got {number}")
    return number


def _check_span(name: str, span: object, size: int) -> tuple[int, int]:
    if not isinstance(span, list) or len(span) != 2:
        raise ValueError(f"{name}: expected a span [first, after the last], got another thing")
    first = check_whole_number(name, span[0], 0, size - 1)
    return first, check_whole_number(name, span[1], first + 1, size)
