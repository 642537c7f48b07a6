"""The words and sentences of a text, as spans of its tokens, and as edges on the axes of a layer.

On the page every token belongs to a unit, so that nothing of a row is missing: tokens between spans are units
of their own. This file knows tokens; it does not know maps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from regard.maps.spans import Spans
from regard.spans.token_texts import sentences_of_tokens, words_of_tokens


def text_units(tokens: Sequence[str]) -> dict[str, Spans]:
    """Return the words and the sentences of a list of tokens: spans without gaps."""
    return {
        "words": _without_gaps(words_of_tokens(tokens), tokens),
        "sentences": _without_gaps(sentences_of_tokens(tokens), tokens),
    }


def describe_units(units: dict[str, Spans]) -> dict[str, Any]:
    """Describe units as plain data: for each kind the edges of its spans, and their names."""
    return {
        name: {"edges": [*spans.starts, *spans.stops[-1:]], "names": list(spans.names)}
        for name, spans in units.items()
    }


def axis_edges(spans: Spans, first: int, size: int) -> list[int]:
    """Return where units begin on an axis of `size` tokens that starts at token `first`, and its end.

    >>> axis_edges(Spans.from_edges([0, 3, 5, 9]), 2, 5)
    [0, 1, 3, 5]
    """
    inside = [edge - first for edge in spans.starts if first < edge < first + size]
    return [0, *inside, size]


def _without_gaps(spans: Spans, tokens: Sequence[str]) -> Spans:
    """Return spans of all tokens: those between spans are spans of their own."""
    edges, names = [0], []
    for start, stop, name in spans:
        for gap in range(edges[-1], start):
            edges.append(gap + 1)
            names.append(tokens[gap])
        edges.append(stop)
        names.append(name)
    for gap in range(edges[-1], len(tokens)):
        edges.append(gap + 1)
        names.append(tokens[gap])
    return Spans.from_edges(edges, names)
