"""What a head may be called: a label only where a score stands clear of what chance would give.

A score earns its label when all of this holds:
- it is at least its floor: 0.2, for a sink 0.3 (Gu 2024), for local 0.5;
- the lower end of its interval, taken twice as wide as the 95% that is shown, since many heads are tried, is
  0.1 or more above its nulls: looking at everything alike and, for scores that ask which tokens are equal,
  the same attention with the labels of the tokens shuffled;
- at least six queries had an occasion; where fewer than sixteen had, only 0.8 and more is a label.

A head that earns several is called by the one that stands highest above its null. A sink and looking at what
is near count half there: they are what heads do beside their work.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from regard.heads.running_sums import Estimate

FLOORS = {
    "induction": 0.2,
    "duplicate": 0.2,
    "previous_token": 0.2,
    "itself": 0.2,
    "sink": 0.3,
    "local": 0.5,
}
BESIDE = ("sink", "local")
REPEATS = "_on_repeats"  # ends the names of scores that were taken on random tokens, repeated
MARGIN = 0.1
REACH = 2  # times the 95% interval
QUERIES = 6
FEW, SURE = 16, 0.8


def labels(found: Mapping[str, Estimate]) -> tuple[str, ...]:
    """The labels that a head earns, the first being what it is called; a probe's scores count as well."""
    excess: dict[str, float] = {}
    for name, score in found.items():
        label = name.removesuffix(REPEATS)
        if label in FLOORS and _clear(score, FLOORS[label]):
            above = (score.value - _null(score)) * (0.5 if label in BESIDE else 1.0)
            excess[label] = max(above, excess.get(label, above))
    return tuple(sorted(excess, key=lambda label: -excess[label]))


def _clear(score: Estimate, floor: float) -> bool:
    if math.isnan(score.low) or score.queries < QUERIES:
        return False
    least = score.value - REACH * (score.value - score.low)
    floor = max(floor, SURE) if score.queries < FEW else floor
    return score.value >= floor and least >= _null(score) + MARGIN


def _null(score: Estimate) -> float:
    return max(score.null, -math.inf if math.isnan(score.labels) else score.labels)
