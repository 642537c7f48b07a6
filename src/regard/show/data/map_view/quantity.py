"""What the cells of a map stand for: weights or contributions, of tokens, words or sentences.

This file knows names and their meaning, and where the words and sentences of a text begin. `contents` knows
the captures that they are asked of, and the page's `data/quantity.js` says the same in its words.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, get_args

from regard.spans.text_spans import sentences_of_tokens, words_of_tokens

Shade = Literal["weights", "values", "logit"]
"""- "weights": the attention weights.
- "values": each weight times the norm of what the key's value adds to the residual stream.
- "logit": what each key adds to the logit of a token that may follow a position."""
Units = Literal["tokens", "words", "sentences"]


class Quantity(NamedTuple):
    """What a cell, a row or a column is made of. By default it is the weights of tokens."""

    shade: Shade = "weights"
    units: Units = "tokens"
    units_of: int | None = None
    """The number of the text whose words or sentences are taken; None for the text itself."""
    position: int | None = None
    """For "logit", the query whose next token it is; None for the last."""
    token: int | None = None
    """For "logit", the id of that token; None for the likeliest."""

    @classmethod
    def parse(cls, **words: Any) -> Quantity:
        """Return a quantity from the words of a request; KeyError lists those that exist."""
        quantity = cls(**words)
        for name, choices in (("shade", get_args(Shade)), ("units", get_args(Units))):
            if (value := getattr(quantity, name)) not in choices:
                raise KeyError(f"{name}: expected one of {', '.join(choices)}, got {value!r}")
        return quantity


PLAIN = Quantity()


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
