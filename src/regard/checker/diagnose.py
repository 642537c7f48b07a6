"""Recognising a mistake: which variant of the catalogue reproduces the code's numbers?

Every mistake is tried alone, then every two together, under each interpretation of the code. A match must
reproduce every observation, the wrong ones and the right ones.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

import torch

from regard.checker.catalogue import CATALOGUE
from regard.checker.oracle.oracle import TOLERANCE, Intent, Observation, fitting_intents, relative_error
from regard.checker.oracle.question import Answer
from regard.checker.oracle.variant import ACTS_ON, CORRECT, AttentionVariant, lacks


@dataclass(frozen=True)
class Match:
    """Mistakes that together reproduce the code's numbers."""

    names: tuple[str, ...]
    error: float  # the largest relative difference that remains
    detail: str = ""
    partial: bool = False  # whether they explain some of the observations only
    decisions: int = 1  # how many fields of the correct variant it changes: the fewer, the simpler


Change = dict[str, Any]
"""Fields of `AttentionVariant` and their new values."""


class VariantMatcher:
    """Compares variants with observations, under one interpretation of the code."""

    def __init__(self, intent: Intent, observations: list[Observation]) -> None:
        self.intent = intent
        self.observations = [Observation(intent.apply(o.question), o.answer) for o in observations]
        self._projected: dict[tuple[int, str], Any] = {}
        self._errors: dict[tuple[AttentionVariant, int], float] = {}  # by the observation, which stays
        # Wrong answers and small questions come first: they rule out variants soonest.
        self.observations.sort(
            key=lambda o: (self.error(CORRECT, o) < TOLERANCE, o.question.q.numel() * o.question.k.shape[-2])
        )
        # The fields of a variant that can make a difference in these questions.
        absent = {n for n in ACTS_ON if all(lacks(n, o.question, intent.wiring) for o in self.observations)}
        self._possible = {field.name for field in fields(AttentionVariant)} - absent

    def can_differ(self, change: Change) -> bool:
        """Return whether a change of fields can make a difference in these questions."""
        return not self._possible.isdisjoint(change)

    def predict(self, variant: AttentionVariant, observation: Observation) -> Answer | None:
        """Return the variant's answer to an observation's question; None if its shapes do not fit."""
        question = observation.question
        key = (id(question), variant.split)
        try:
            with torch.no_grad():
                if key not in self._projected:
                    self._projected[key] = self.intent.wiring.project(question, split=variant.split)
                return variant.answer(question, self.intent.wiring, self._projected[key])
        except (RuntimeError, ValueError, IndexError):
            return None

    def error(self, variant: AttentionVariant, observation: Observation) -> float:
        """Return the relative difference between an observed answer and the variant's.

        NaN equals nothing: some finite numbers must agree. Only 0 · inf, which is NaN everywhere, explains an
        answer without finite numbers.
        """
        # Approximate matches ask again what exact ones have asked.
        key = (variant, id(observation))
        if key not in self._errors:
            answer = self.predict(variant, observation)
            error = math.inf if answer is None else relative_error(observation.answer, answer)
            if answer is not None and error < TOLERANCE and variant.masking != "nan":
                finite = answer.output.isfinite() & observation.answer.output.isfinite()
                counted = finite if answer.free is None else finite & ~answer.free
                error = error if bool(counted.any()) else math.inf
            self._errors[key] = error
        return self._errors[key]

    def fits(self, variant: AttentionVariant, tolerance: float = TOLERANCE) -> float | None:
        """Return the largest error over all observations, or None if one exceeds the tolerance."""
        worst = 0.0
        for observation in self.observations:
            if not (error := self.error(variant, observation)) < tolerance:
                return None
            worst = max(worst, error)
        return worst


def diagnose(observations: list[Observation], intents: list[Intent], source: str = "") -> list[Match]:
    """Return the single mistakes that reproduce all observations, best first.

    Under an interpretation that reproduces them without a mistake there is none. The source text, the
    simplicity and the catalogue's order decide between them.

    Arguments:
        observations: questions with the code's answers.
        intents: the interpretations of the code.
        source: the author's source text, or "".
    """
    matchers = [
        VariantMatcher(intent, observations) for intent in fitting_intents(intents, observations)[:24]
    ]
    # Where attention without a mistake gives these numbers, one that changes nothing on them would too.
    matchers = [matcher for matcher in matchers if matcher.fits(CORRECT) is None]
    singles = _single_changes(observations)
    # Mistakes of the catalogue, then any scale, then approximate matches.
    matches = _find_matches(matchers, (((name,), change) for name, change in singles))
    matches = matches or [match for matcher in matchers[:4] for match in _fit_scale(matcher)]
    return _best_first(matches or _find_approximate(matchers, singles), source)


def diagnose_pairs(observations: list[Observation], intents: list[Intent], source: str = "") -> list[Match]:
    """Return the pairs of mistakes that reproduce all observations, best first; see `diagnose`."""
    fitting = fitting_intents(intents, observations)
    by_causality = {intent.causal: intent for intent in reversed(fitting)}  # the first of either
    matchers = [VariantMatcher(intent, observations) for intent in by_causality.values()]
    matchers = [matcher for matcher in matchers if matcher.fits(CORRECT) is None]  # as in `diagnose`
    singles = _single_changes(observations)
    matches: list[Match] = []
    for matcher in matchers:
        matches = matches or _find_matches([matcher], _pairs(matcher, singles), enough=3)
    if not matches and matchers:
        matches = list(_fit_scale_with_another(matchers[0], singles))
    return _best_first(matches, source)


def diagnose_blocks(observation: Observation, intent: Intent, sizes: list[int]) -> list[Match]:
    """Return the mistakes of code in blocks that reproduce one observation, for blocks of these sizes.

    Other mistakes show on a short text too. The arguments are otherwise those of `diagnose`.
    """
    changes: dict[str, tuple[tuple[str, ...], Change]] = {}  # each form of a mistake once for every size
    for mistake in CATALOGUE.values():
        for change in mistake.changes:
            for key, n in itertools.product({"block", "chunk"} & change.keys(), sizes):
                resized = change | {key: n}
                changes[f"{mistake.name} {resized}"] = (mistake.name,), resized
    return _best_first(_find_matches([VariantMatcher(intent, [observation])], changes.values()), "")


def _best_first(matches: list[Match], source: str) -> list[Match]:
    """Return each set of mistakes once, the most plausible first."""
    order = list(CATALOGUE)
    roots = len(re.findall(r"sqrt|\*\* ?-?0?\.5|scaled_dot_product_attention", source))
    # The source text decides between two mistakes with equal numbers.
    contradicted = "scaled-twice" if roots < 2 else "scaled-by-width"

    def complexity(match: Match) -> tuple[int, bool, bool, int, int]:
        name, contradicts = match.names[0], contradicted in match.names
        # A mistake of this very layout comes first.
        return len(match.names), not CATALOGUE[name].layouts, contradicts, match.decisions, order.index(name)

    unique: dict[tuple[str, ...], Match] = {}
    for match in sorted(matches, key=complexity):
        unique.setdefault(match.names, match)
    return list(unique.values())


def _single_changes(observations: list[Observation]) -> list[tuple[str, Change]]:
    """Return the changes of every mistake that can be made in the layout of the observations."""
    layout = observations[0].question.layout if observations else ""
    mistakes = [m for m in CATALOGUE.values() if not m.layouts or layout in m.layouts]
    return [(m.name, change) for m in mistakes for change in m.changes]


def _find_approximate(matchers: list[VariantMatcher], singles: list[tuple[str, Change]]) -> list[Match]:
    """Return mistakes that match approximately, for code that also loses precision.

    They must be ten times closer to the code's numbers than correct attention is.
    """
    errors = [[matcher.error(CORRECT, o) for o in matcher.observations] for matcher in matchers[:2]]
    rights = [max(filter(math.isfinite, own), default=0.0) for own in errors]
    tolerance = min(0.02, min(rights, default=0.0) / 10)
    return [
        Match((name,), error)
        for matcher in matchers[:2]
        for name, change in singles
        if (error := matcher.fits(replace(CORRECT, **change), tolerance)) is not None
    ]


def explain_parts(observations: list[Observation], intents: list[Intent], source: str = "") -> list[Match]:
    """Return mistakes that explain single observations, for when none explains all of them.

    Those that explain most observations come first. The arguments are those of `diagnose`.
    """
    by_names: dict[tuple[str, ...], list[Match]] = {}
    for observation in observations[:6]:
        if any(VariantMatcher(intent, [observation]).fits(CORRECT) is not None for intent in intents[:8]):
            continue
        for match in diagnose([observation], intents[:8], source)[:2]:
            by_names.setdefault(match.names, []).append(match)
    # A scale that differs between inputs is not constant: attention may scale with the length. One over
    # the root of a whole number, it is the size of another axis.
    consistent = [
        matches
        for matches in by_names.values()
        if len({match.detail for match in matches}) == 1 or all("1/√" in match.detail for match in matches)
    ]

    def plausibility(matches: list[Match]) -> tuple[bool, int, int]:
        # NaN everywhere explains any observation of NaN.
        return "zero-times-infinity" in matches[0].names, len(matches[0].names), -len(matches)

    return [replace(matches[0], partial=True) for matches in sorted(consistent, key=plausibility)]


def _pairs(
    matcher: VariantMatcher, singles: list[tuple[str, Change]]
) -> Iterator[tuple[tuple[str, ...], Change]]:
    """Yield every two mistakes that could together give the first observation.

    If one of them changes nothing there (a mistake of the window, in a question without a window), the other
    must explain the observation alone.
    """
    first = matcher.observations[0]
    right = matcher.predict(CORRECT, first)
    singles = [(name, change) for name, change in singles if matcher.can_differ(change)]
    active, alone = [], []
    for _, change in singles:
        answer = matcher.predict(replace(CORRECT, **change), first)
        # Equal answers differ by the rounding of float64 at most.
        active.append(answer is None or right is None or relative_error(answer, right) > 1e-9)
        alone.append(answer is not None and relative_error(first.answer, answer) < TOLERANCE)
    for a, b in itertools.combinations(range(len(singles)), 2):
        (name, change), (other, more) = singles[a], singles[b]
        if name == other or change.keys() & more.keys():
            continue
        if (active[a] and active[b]) or (alone[a] and not active[b]) or (alone[b] and not active[a]):
            yield (name, other), change | more


def _find_matches(
    matchers: list[VariantMatcher],
    changes: Iterable[tuple[tuple[str, ...], Change]],
    enough: int | None = None,
) -> list[Match]:
    """Return the changes that match under the first interpretation in which any do; at most `enough`."""
    # A generator would be empty for the second matcher.
    changes = changes if len(matchers) == 1 else list(changes)
    for matcher in matchers:
        matches: list[Match] = []
        for names, change in changes:
            if not matcher.can_differ(change):
                continue
            if (error := matcher.fits(replace(CORRECT, **change))) is not None:
                matches.append(Match(names, error, decisions=len(change)))
                if len(matches) == enough:
                    break
        if matches:
            return matches
    return []


def _fit_scale(matcher: VariantMatcher, other: tuple[str, Change] | None = None) -> Iterator[Match]:
    """Search for the one scale that explains all observations, and yield it if there is one.

    `other` is another mistake that is made together with it.
    """
    names, base = ((), CORRECT) if other is None else ((other[0],), replace(CORRECT, **other[1]))

    scale = minimise_scale(lambda scale: matcher.error(_scaled(base, scale), matcher.observations[0]))
    if scale is not None and (remaining := matcher.fits(_scaled(base, scale))) is not None:
        width = round(scale**-2)
        root = f" = 1/√{width}" if width and abs(width**-0.5 - scale) < 1e-4 * scale else ""
        detail = f"the scores are multiplied by {scale:.4g}{root}, whatever the head's width"
        yield Match((*names, "constant-scale"), remaining, detail)


def _scaled(variant: AttentionVariant, scale: float) -> AttentionVariant:
    return replace(variant, scale=lambda n: scale)


def minimise_scale(error: Callable[[float], float]) -> float | None:
    """Return the scale, from 0.004 to 44, with the smallest error; None if that is still above 0.5.

    A coarse grid, then golden-section search between the neighbours of its best point.
    """
    errors = [error(math.exp(log_scale)) for log_scale in _GRID]
    best = errors.index(min(errors))
    if errors[best] > 0.5:
        return None
    low, high = _GRID[max(0, best - 1)], _GRID[min(len(_GRID) - 1, best + 1)]
    golden = (math.sqrt(5) - 1) / 2
    # 0.618⁵⁰ of the interval are 4e-11, far below the tolerance.
    for _ in range(50):
        a, b = high - golden * (high - low), low + golden * (high - low)
        low, high = (low, b) if error(math.exp(a)) < error(math.exp(b)) else (a, high)
    return math.exp((low + high) / 2)


_GRID = [math.log(0.004) + i * 0.3 for i in range(32)]  # scales from 0.004 to 44


def _fit_scale_with_another(matcher: VariantMatcher, singles: list[tuple[str, Change]]) -> Iterator[Match]:
    """Search for an unknown scale together with another mistake: coarsely for all, finely for the nearest."""
    first = matcher.observations[0]

    def smallest_error(change: Change) -> float:
        return min(
            matcher.error(_scaled(replace(CORRECT, **change), math.exp(x)), first) for x in _GRID[3:24:3]
        )

    candidates = [(smallest_error(change), name, change) for name, change in singles if "scale" not in change]
    for _, name, change in sorted(candidates, key=lambda c: c[0])[:3]:
        yield from _fit_scale(matcher, (name, change))
