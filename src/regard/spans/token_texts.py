"""Words and sentences of tokens that are known by their texts alone: a capture keeps no tokenizer.

Joined, the texts of the tokens are the text. A token that is written like <s>, <|endoftext|> or [CLS] counts
as special.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import accumulate

from regard.maps.spans import Spans
from regard.spans import segments
from regard.spans.text_spans import spans_between
from regard.spans.token_offsets import TextToken

SPECIAL = re.compile(r"\s*(<[^<>\s]+>|\[[A-Z]+\d*\])\s*")


def words_of_tokens(tokens: Sequence[str]) -> Spans:
    """The words of a list of tokens, named by their text.

    >>> words_of_tokens(["<s>", "The", " light", "house", ".", " It"]).names
    ('<s>', 'The', ' lighthouse', '.', ' It')
    """
    return spans_between(located(tokens), "".join(tokens), segments.words("".join(tokens)))


def sentences_of_tokens(tokens: Sequence[str]) -> Spans:
    """The sentences of a list of tokens, named by their text.

    >>> sentences_of_tokens(["It", " rained", ".", " We", " went", "."]).names
    ('It rained.', ' We went.')
    """
    return spans_between(located(tokens), "".join(tokens), segments.sentences("".join(tokens)))


def located(tokens: Sequence[str]) -> list[TextToken]:
    """Each token with its place in the joined text."""
    stops = [*accumulate(map(len, tokens))]
    return [
        TextToken(stop - len(token), stop, token, SPECIAL.fullmatch(token) is not None)
        for token, stop in zip(tokens, stops, strict=True)
    ]
