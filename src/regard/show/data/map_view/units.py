"""The words and sentences of a text, as spans of its tokens, and as edges on the axes of a layer.

Every token belongs to a unit, so that nothing of a row is missing. This file knows tokens, not maps.
"""

from __future__ import annotations

from collections.abc import Sequence

from regard.spans.text_spans import sentences_of_tokens, words_of_tokens


def text_units(tokens: Sequence[str]) -> dict[str, list[int]]:
    """Return where the words and the sentences of a list of tokens begin, and the number of tokens.

    >>> text_units(["It", " rained", ".", " We", " went", "."])
    {'words': [0, 1, 2, 3, 4, 5, 6], 'sentences': [0, 3, 6]}
    """
    units = {"words": words_of_tokens(tokens), "sentences": sentences_of_tokens(tokens)}
    return {name: sorted({0, *spans.starts, len(tokens)}) for name, spans in units.items()}


def axis_edges(edges: Sequence[int], first: int, size: int) -> list[int]:
    """Return where units begin on an axis of `size` tokens that starts at token `first`, and its end.

    >>> axis_edges([0, 3, 5, 9], 2, 5)
    [0, 1, 3, 5]
    """
    inside = [edge - first for edge in edges if first < edge < first + size]
    return [0, *inside, size]
