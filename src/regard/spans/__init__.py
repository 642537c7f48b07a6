"""Spans: words, sentences, turns and other parts of a text, as named runs of its tokens."""

from regard.maps.spans import Spans
from regard.spans.average import mean
from regard.spans.chat import turns
from regard.spans.layouts import custom, documents, grid
from regard.spans.table import SpanHead, SpanInterval, SpanTable
from regard.spans.text_spans import sentences, words

__all__ = [
    "SpanHead",
    "SpanInterval",
    "SpanTable",
    "Spans",
    "custom",
    "documents",
    "grid",
    "mean",
    "sentences",
    "turns",
    "words",
]
