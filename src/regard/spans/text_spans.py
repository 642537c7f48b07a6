"""Spans of the tokens of a text: its words and its sentences.

Here the edges of `segments` and the tokens of `token_offsets` meet. A token that reaches over an edge joins
what is on both sides of it, so no border is inside a token, and none is inside a character. A capture
keeps no tokenizer: the texts of its tokens, joined, are its text.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from regard.maps.spans import Spans
from regard.spans import segments
from regard.spans.token_offsets import TextToken, locate_tokens
from regard.support.characters import locate

# Of one word without spaces, so that "<a href=…>" and "[See note]" in a text are no special tokens.
SPECIAL = re.compile(r"\s*(<[^<>\s]+>|\[[A-Z]+\d*\])\s*")


def words(tokenizer: Any, text: str) -> Spans:
    """The words of a text as spans of its tokens, named by their text; joined, the names are the text.

    - `tokenizer`: a fast one of Transformers, of the `tokenizers` package, or `model.tokenizer` of a `GPT`.
      The spans are of the tokens of `tokenizer(text)`; special tokens, as <s> or [CLS], are spans, too.
    - `text`: the text. A word is a run of letters and digits with the space before it, and each other sign is
      one. In scripts without spaces (Chinese, Japanese, Thai, Lao, Khmer, Burmese) every character is a word.

    >>> from regard.gpt import GPT
    >>> spans = words(GPT.from_pretrained("default").tokenizer, "The lighthouse at Farrow Point 🦉")
    >>> spans.names
    ('<|endoftext|>', 'The', ' lighthouse', ' at', ' Farrow', ' Point', ' 🦉')
    """
    return spans_between(locate_tokens(tokenizer, _checked(text)), text, segments.words(text))


def sentences(tokenizer: Any, text: str) -> Spans:
    """The sentences of a text as spans of its tokens, named by their text; joined, the names are the text.

    - `tokenizer`: as for `words`; special tokens are spans of their own.
    - `text`: the text. A sentence ends with . ! ? … before a space, with 。！？, or at a blank line, but not
      at a common abbreviation nor before a small letter.

    >>> from regard.gpt import GPT
    >>> sentences(GPT.from_pretrained("default").tokenizer, "Mr. Ellis slept. The lamp was lit.").names
    ('<|endoftext|>', 'Mr. Ellis slept.', ' The lamp was lit.')
    """
    return spans_between(locate_tokens(tokenizer, _checked(text)), text, segments.sentences(text))


def _checked(text: str) -> str:
    if not isinstance(text, str):
        raise ValueError(f"text: expected a text, got {type(text).__name__}")
    return text


@dataclass
class _Span:
    """A span while it grows: its tokens, its segments, and its characters."""

    first: int
    stop: int
    last_segment: int
    end: int
    special: TextToken | None = None


def spans_between(tokens: list[TextToken], text: str, edges: list[int]) -> Spans:
    """The tokens of a text, cut where the segments between these edges begin."""
    characters = segments.characters(text)
    spans: list[_Span] = []
    waiting: int | None = None  # the first of some tokens that hold only space: they belong to what follows
    for number, token in enumerate(tokens):
        if token.is_special:
            if waiting is not None:
                _append_space(spans, waiting, number, token.start, edges)
                waiting = None
            if spans and token.stop > token.start:  # it is written in the text, perhaps inside a word
                spans[-1].end = min(spans[-1].end, token.start)
            spans.append(_Span(number, number + 1, -1, token.stop, token))
            continue
        content = [i for i in range(token.start, token.stop) if not text[i].isspace()]
        if not content:
            waiting = number if waiting is None else waiting
            continue
        first, last = (bisect_right(edges, i) - 1 for i in (content[0], content[-1]))
        # A token may end inside a character (a piece of an emoji): the span ends where the character does.
        end = max(characters[bisect_left(characters, token.stop)], edges[last + 1])
        if spans and spans[-1].special is None and first <= spans[-1].last_segment:
            span = spans[-1]
            span.stop, span.last_segment = number + 1, max(last, span.last_segment)
            span.end = max(end, span.end)
        else:
            spans.append(_Span(number if waiting is None else waiting, number + 1, last, end))
        waiting = None
    if waiting is not None:
        _append_space(spans, waiting, len(tokens), len(text), edges)
    return Spans([span.first for span in spans], [span.stop for span in spans], _names(spans, text))


def _append_space(spans: list[_Span], first: int, stop: int, end: int, edges: list[int]) -> None:
    """Put tokens that hold only space, before a special token or the end, to the span before them."""
    if spans and spans[-1].special is None:
        spans[-1].stop, spans[-1].end = stop, max(spans[-1].end, end)
    else:
        spans.append(_Span(first, stop, bisect_right(edges, end) - 1, end))


def _names(spans: list[_Span], text: str) -> list[str]:
    """The text of each span, in such a way that together they give the whole text."""
    of_text = [span for span in spans if span.special is None or span.special.stop > span.special.start]
    if of_text:
        of_text[-1].end = len(text)
    names, start = [], 0
    for span in spans:
        if span.special is not None and span.special.stop == span.special.start:
            names.append(span.special.piece)
        else:
            end = max(start, span.end)
            names.append(text[start:end])
            start = end
    return names


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
