"""The names of the head scores: one list for the table in a terminal and for the page.

The words are in `scores.toml`. The scores are computed in `query_scores` and `head_scores`.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import NamedTuple


class ScoreWords(NamedTuple):
    """How one score is called."""

    name: str
    """Its name in a `HeadTable`."""
    title: str
    """Its name for a reader, in one or two words."""
    about: str
    """One plain sentence that says what it measures."""


SCORE_WORDS = tuple(
    ScoreWords(name, **words)
    for name, words in tomllib.loads(Path(__file__).with_name("scores.toml").read_text("utf-8")).items()
)
TITLES = {score.name: score.title for score in SCORE_WORDS}


def title(name: str) -> str:
    """Return a score's title; a score that is not in the list is called by its own name.

    >>> title("itself"), title("my_score")
    ('self', 'my score')
    """
    return TITLES.get(name, name.replace("_", " "))


def about(name: str) -> str:
    """Return the sentence of a score as it is written after a colon.

    >>> about("local")
    'attention on the last few tokens'
    """
    sentence = next(score.about for score in SCORE_WORDS if score.name == name)
    return f"{sentence[0].lower()}{sentence[1:].rstrip('.')}"


SYNONYMS = {"self": "itself", "previous": "previous_token", "normalized_entropy": "normalised_entropy"}


def canonical_name(name: str) -> str:
    """The name of a score from other spellings of it: "previous token", "self", "normalized_entropy"."""
    name = name.strip().lower().replace(" ", "_").replace("-", "_")
    return SYNONYMS.get(name, name)
