"""Labels of heads: a head has a label only if the score is clearly above both of its baselines.

A score earns its label if all of these hold:
- it is at least the minimum: 0.2, for a sink 0.3 (Gu 2024), for local 0.5, for retrieval 0.1 (Wu 2024);
- the lower end of its interval, taken twice as wide as the 95% interval that is shown, since many heads are
  tested, is 0.1 or more above its baselines: uniform attention and, for scores that depend on which tokens
  are equal, the same attention with the tokens shuffled;
- it is defined for at least six queries; if for fewer than sixteen, it has to be at least 0.8.

The first label of a head is the one furthest above its baseline. Sink and local count half there: many heads
have them beside their main function.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Protocol

from regard.heads.running_sums import Estimate

MIN_SCORES = {
    "induction": 0.2,
    "duplicate": 0.2,
    "retrieval": 0.1,
    "previous_token": 0.2,
    "itself": 0.2,
    "sink": 0.3,
    "local": 0.5,
    "neighbours": 0.5,
    "cls": 0.3,
    "registers": 0.3,
}
SECONDARY = ("sink", "local", "cls", "registers")
REPEATS = "_on_repeats"  # ends the names of scores on random repeated tokens
MARGIN = 0.1  # above the baselines
WIDENING = 2  # times the 95% interval
MIN_QUERIES = 6
FEW_QUERIES, MIN_SCORE_OF_FEW = 16, 0.8


class ScoreWithNull(Protocol):
    """A score with its baseline, as in a table."""

    @property
    def value(self) -> float: ...
    @property
    def null(self) -> float: ...


def earned_labels(estimates: Mapping[str, Estimate]) -> tuple[str, ...]:
    """The labels that a head earns by its scores, those on repeated tokens included, the first one first."""
    excess: dict[str, float] = {}
    for name, score in estimates.items():
        label = name.removesuffix(REPEATS)
        if label in MIN_SCORES and _is_clear(score, MIN_SCORES[label]):
            above = _distinction(label, score.value - _baseline(score))
            excess[label] = max(above, excess.get(label, above))
    return tuple(sorted(excess, key=lambda label: -excess[label]))


def sort_labels(labels: Iterable[str], scores: Mapping[str, ScoreWithNull]) -> tuple[str, ...]:
    """Labels of a head by how far their scores are above uniform attention, the furthest first."""

    def distinction(label: str) -> float:
        found = [scores[name] for name in (label, label + REPEATS) if name in scores]
        return max((_distinction(label, score.value - score.null) for score in found), default=-math.inf)

    return tuple(sorted(labels, key=distinction, reverse=True))


def _distinction(label: str, above: float) -> float:
    """How distinct a label makes a head whose score is so far above its baseline."""
    return above * (0.5 if label in SECONDARY else 1.0)


def _is_clear(score: Estimate, minimum: float) -> bool:
    """Whether a score meets the three conditions."""
    if math.isnan(score.low) or score.queries < MIN_QUERIES:
        return False
    low = score.value - WIDENING * (score.value - score.low)
    minimum = max(minimum, MIN_SCORE_OF_FEW) if score.queries < FEW_QUERIES else minimum
    return score.value >= minimum and low >= _baseline(score) + MARGIN


def _baseline(score: Estimate) -> float:
    """The higher of the two baselines."""
    return max(score.null, -math.inf if math.isnan(score.relabelled) else score.relabelled)
