"""The names of the head scores: one list for the table in a terminal and for the page.

This file knows words. The scores are computed in `query_scores` and `head_scores`.
"""

from __future__ import annotations

from typing import NamedTuple


class ScoreWords(NamedTuple):
    """How one score is called."""

    name: str
    """Its name in a `HeadTable`."""
    title: str
    """Its name for a reader, in one or two words."""
    about: str
    """One plain sentence that says what it measures."""


SCORE_WORDS = (
    ScoreWords("previous_token", "previous token", "Attention on the token before the query."),
    ScoreWords("itself", "self", "Attention on the query's own token."),
    ScoreWords("duplicate", "duplicate", "Attention on earlier copies of the query's token."),
    ScoreWords("induction", "induction", "Attention on what followed earlier copies of the query's token."),
    ScoreWords(
        "retrieval", "retrieval", "How often the most attended key is the token being copied from a needle."
    ),
    ScoreWords("sink", "sink", "Attention on the one key that receives the most."),
    ScoreWords(
        "one_token", "one token", "Attention on the token id that receives the most, wherever it stands."
    ),
    ScoreWords(
        "fixed_offset",
        "fixed offset",
        "Attention on the key a fixed number of tokens back, whatever is there.",
    ),
    ScoreWords("local", "local", "Attention on the last few tokens."),
    ScoreWords("neighbours", "neighbours", "Attention on the eight patches around the query's own patch."),
    ScoreWords("cls", "CLS", "Attention on the CLS token of a vision model."),
    ScoreWords("registers", "registers", "Attention on the register tokens of a vision model."),
    ScoreWords("eviction", "eviction", "Attention that is lost when a small cache evicts keys."),
    ScoreWords(
        "normalised_entropy",
        "norm. entropy",
        "Entropy as a share of its maximum; uniform attention scores 1.",
    ),
    ScoreWords("entropy", "entropy", "Entropy of the attention, in nats."),
    ScoreWords("importance", "importance", "Rise of the loss when the head is ablated, in nats a token."),
    ScoreWords("distance", "distance", "Mean number of tokens between the query and the keys it attends to."),
    ScoreWords(
        "effective_length",
        "effective length",
        "Number of keys that a linear layer's query draws on, counted as if they weighed the same.",
    ),
    ScoreWords(
        "patch_distance",
        "patch distance",
        "Mean distance in the picture from the query's patch to the patches that it attends to.",
    ),
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
