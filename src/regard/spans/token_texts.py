"""Words and sentences of tokens that are known by their texts alone: a capture keeps no tokenizer.

Joined, the texts of the tokens are the text; a character in several pieces counts once. A token that is
written like <s>, <|endoftext|> or [CLS] counts as special.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from regard.maps.spans import Spans
from regard.spans import segments
from regard.spans.text_spans import spans_between
from regard.spans.token_offsets import TextToken
from regard.support.characters import locate

# Of one word without spaces, so that "<a href=…>" and "[See note]" in a text are no special tokens.
SPECIAL = re.compile(r"\s*(<[^<>\s]+>|\[[A-Z]+\d*\])\s*")


def words_of_tokens(tokens: Sequence[str]) -> Spans:
    """The words of a list of tokens, named by their text.

    >>> words_of_tokens(["<s>", "The", " light", "house", ".", " It"]).names
    ('<s>', 'The', ' lighthouse', '.', ' It')
    """
    return _spans(tokens, segments.words)


def sentences_of_tokens(tokens: Sequence[str]) -> Spans:
    """The sentences of a list of tokens, named by their text.

    >>> sentences_of_tokens(["It", " rained", ".", " We", " went", "."]).names
    ('It rained.', ' We went.')
    """
    return _spans(tokens, segments.sentences)


def _spans(tokens: Sequence[str], cut: Callable[[str], list[int]]) -> Spans:
    """The tokens, cut where the segments of their text begin."""
    text, places = locate(tokens)
    located = [
        TextToken(*place, token, is_special(token)) for token, place in zip(tokens, places, strict=True)
    ]
    return spans_between(located, text, cut(text))


def is_special(token: str) -> bool:
    """Whether a token is written like <s>, <|endoftext|> or [CLS], and is thus no piece of the text."""
    return SPECIAL.fullmatch(token) is not None
