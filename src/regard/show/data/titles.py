"""Titles of texts: their first words, without the special tokens around them."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence

from regard.spans.text_spans import is_special
from regard.support.characters import join

LONGEST = 48  # characters of a title


def title_of_text(text: str) -> str:
    """Return the first words of a text.

    >>> title_of_text("The lighthouse at Farrow Point was old, and Mary Ellis kept it lit.")
    'The lighthouse at Farrow Point was old, and…'
    """
    # Cut first: a text may have megabytes, and a title needs its first words.
    words = " ".join(text[: 20 * LONGEST].split())
    if len(words) <= LONGEST:
        return words
    shortened = words[: LONGEST - 1]
    return (shortened.rpartition(" ")[0] or shortened).rstrip(" ,;:") + "…"


def distinct_title(title: str, others: Collection[str]) -> str:
    """Return a title that none of the others is.

    >>> distinct_title("The cat", ["The cat", "The dog"])
    'The cat (2)'
    """
    titles = (title if n == 1 else f"{title} ({n})" for n in itertools.count(1))
    return next(one for one in titles if one not in others)


def title_of_tokens(tokens: Sequence[str]) -> str:
    """Return the first words of a text that is known by its tokens; "" if it has none.

    >>> title_of_tokens(["<|endoftext|>", "The", " cat", "\\n"])
    'The cat'
    """
    return title_of_text(join([token for token in tokens[: 20 * LONGEST] if not is_special(token)]))
