"""What the cells of a map stand for: weights or contributions, of tokens, words or sentences.

This file knows names and their meaning; `contents` knows the captures that they are asked of, and the page's
`data/quantity.js` says the same in its words.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, get_args

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
