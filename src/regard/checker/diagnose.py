"""Recognising a mistake: which recipe of the catalogue gives the numbers that the code gave?

Every mistake is tried alone, then every two together, under each reading of the code. What matches must match
every observation: the ones that came out wrong and the ones that came out right.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from regard.checker.catalogue import CATALOGUE
from regard.checker.oracle.oracle import apart
from regard.checker.oracle.variant import RIGHT, Answer, AttentionVariant, Scale, TestSizes
from regard.checker.understand import TOLERANCE, Intent, Observed


@dataclass(frozen=True)
class Match:
    """Mistakes that together give the code's own numbers, and what is left between the two."""

    names: tuple[str, ...]
    error: float
    detail: str = ""
    decisions: int = 1  # how many decisions of the right way it changes: the fewer, the simpler


Change = dict[str, Any]


class Bench:
    """Observations under one reading of the code, ready for many recipes to be tried on them."""

    def __init__(self, intent: Intent, observed: list[Observed]) -> None:
        self.intent = intent
        self.observed = [Observed(intent.read(one.question), one.answer) for one in observed]
        self._projected: dict[tuple[int, str], Any] = {}
        # What comes out wrong tells recipes apart soonest.
        self.observed.sort(key=lambda one: self.error(RIGHT, one) < TOLERANCE)

    def predicted(self, recipe: AttentionVariant, one: Observed) -> Answer | None:
        """What the recipe gives; None where it does not apply to these shapes."""
        key = (id(one.question), recipe.split)
        try:
            with torch.no_grad():
                if key not in self._projected:
                    view = recipe.split == "view"
                    self._projected[key] = self.intent.wiring.project(one.question, view=view)
                return recipe.answer(one.question, self.intent.wiring, self._projected[key])
        except (RuntimeError, ValueError, IndexError):
            return None

    def error(self, recipe: AttentionVariant, one: Observed) -> float:
        """How far the recipe is from the answer. One that has nothing to say explains only what is no number.
        How far the recipe is from the answer. One that has nothing to say explains only what is no number."""
        answer = self.predicted(recipe, one)
        if answer is None:
            return math.inf
        numbers = answer.output.isfinite()
        said = numbers if answer.free is None else numbers & ~answer.free
        if not bool(said.any()) and recipe.masking != "nan" and bool(one.answer.output.isfinite().any()):
            return math.inf
        return apart(one.answer, answer)

    def fits(self, recipe: AttentionVariant, tolerance: float = TOLERANCE) -> float | None:
        """The largest error over all observations, or None at the first that does not match."""
        worst = 0.0
        for one in self.observed:
            if not (error := self.error(recipe, one)) < tolerance:
                return None
            worst = max(worst, error)
        return worst


def diagnose(
    observed: list[Observed], intents: list[Intent], source: str = "", *, pairs: bool = True
) -> list[Match]:
    """Matches, best first: one mistake before two, then by the catalogue's order and what the source
    suggests."""
    benches = [Bench(intent, observed) for intent in _fitting(intents, observed)]
    singles = [(name, change) for name, m in CATALOGUE.items() for change in m.changes]
    found = _matching(benches, (((name,), change) for name, change in singles))
    found = found or [match for bench in benches[:4] for match in _fitted_scale(bench)]
    found = found or _roughly(benches, singles)
    if not found and pairs:
        for bench in benches[:2]:
            found = found or _matching([bench], _pairs(bench, singles), enough=3)
    if not found and pairs and benches:
        found = list(_scale_and_another(benches[0], singles))
    order = list(CATALOGUE)
    unique: dict[tuple[str, ...], Match] = {}

    def simplest(match: Match) -> tuple[int, int, int, int]:
        return len(match.names), _unlikely(match, source), match.decisions, order.index(match.names[0])

    for match in sorted(found, key=simplest):
        unique.setdefault(match.names, match)
    return list(unique.values())


def _plausible(matches: list[Match]) -> tuple[bool, int, int]:
    """One mistake before two, and what explains much before little; NaN explains anything, so it comes last.
    One mistake before two, and what explains much before little; NaN explains anything, so it comes last."""
    return "zero-times-infinity" in matches[0].names, len(matches[0].names), -len(matches)


def _roughly(benches: list[Bench], singles: list[tuple[str, Change]]) -> list[Match]:
    """A mistake that comes near in code that also loses digits: ten times nearer than the right way."""
    near: list[Match] = []
    for bench in benches[:2]:
        right = max((e for one in bench.observed if math.isfinite(e := bench.error(RIGHT, one))), default=0.0)
        for name, change in singles:
            error = bench.fits(replace(RIGHT, **change), tolerance=min(0.02, right / 10))
            if error is not None:
                near.append(Match((name,), error))
    return near


def explain_parts(observed: list[Observed], intents: list[Intent], source: str = "") -> list[Match]:
    """Where no mistake explains everything: what explains single observations, most observations first."""
    found: dict[tuple[str, ...], list[Match]] = {}
    for one in observed:
        if any(Bench(intent, [one]).fits(RIGHT) is not None for intent in intents):
            continue
        for match in diagnose([one], intents, source, pairs=False)[:2]:
            found.setdefault(match.names, []).append(match)
    return [matches[0] for matches in sorted(found.values(), key=_plausible)]


def _pairs(bench: Bench, singles: list[tuple[str, Change]]) -> Iterator[tuple[tuple[str, ...], Change]]:
    """Every two mistakes that could together give the first observation.

    A mistake that changes nothing there (a window's, where no window was asked for) says nothing about it:
    then the other one must explain it alone.
    """
    first = bench.observed[0]
    right = bench.predicted(RIGHT, first)
    active, alone = [], []
    for _, change in singles:
        answer = bench.predicted(replace(RIGHT, **change), first)
        active.append(answer is None or right is None or apart(answer, right) > 1e-9)
        alone.append(answer is not None and apart(first.answer, answer) < TOLERANCE)
    for a, b in itertools.combinations(range(len(singles)), 2):
        (name, change), (other, more) = singles[a], singles[b]
        if name == other or change.keys() & more.keys():
            continue
        if (active[a] and active[b]) or (alone[a] and not active[b]) or (alone[b] and not active[a]):
            yield (name, other), change | more


def _matching(
    benches: list[Bench], changes: Iterable[tuple[tuple[str, ...], Change]], enough: int | None = None
) -> list[Match]:
    found: list[Match] = []
    for names, change in changes:
        recipe = replace(RIGHT, **change)
        errors = (bench.fits(recipe) for bench in benches)
        if (error := next((e for e in errors if e is not None), None)) is not None:
            found.append(Match(names, error, decisions=len(change)))
            if len(found) == enough:
                break
    return found


def _fitting(intents: list[Intent], observed: list[Observed]) -> list[Intent]:
    """Readings that fit the shapes at all; of the many that differ only in the number of heads, a few."""
    fitting = []
    for intent in intents if observed else []:
        try:
            shape = RIGHT.answer(intent.read(observed[0].question), intent.wiring).output.shape
        except (RuntimeError, ValueError):
            continue
        if shape == observed[0].answer.output.shape:
            fitting.append(intent)
    return fitting[:8]


def _fitted_scale(bench: Bench, beside: tuple[str, Change] | None = None) -> Iterator[Match]:
    """The one scale that explains everything, if there is one: found by search, not by name.

    `beside` is another mistake that is made together with it.
    """
    names, base = ((), RIGHT) if beside is None else ((beside[0],), replace(RIGHT, **beside[1]))

    def recipe(log_scale: float) -> AttentionVariant:
        return replace(base, scale=lambda n: math.exp(log_scale))

    def error(log_scale: float) -> float:
        return bench.error(recipe(log_scale), bench.observed[0])

    errors = [error(at) for at in _GRID]
    best = errors.index(min(errors))
    if errors[best] > 0.5:
        return
    low, high = _GRID[max(0, best - 1)], _GRID[min(len(_GRID) - 1, best + 1)]
    golden = (math.sqrt(5) - 1) / 2
    for _ in range(50):
        a, b = high - golden * (high - low), low + golden * (high - low)
        low, high = (low, b) if error(a) < error(b) else (a, high)
    if (left := bench.fits(recipe((low + high) / 2))) is not None:
        yield Match((*names, "scale-out-of-step"), left, _scale_in_words(math.exp((low + high) / 2)))


_GRID = [math.log(0.004) + i * 0.3 for i in range(32)]  # scales from 0.004 to 44


def _constant(scale: float, n: TestSizes) -> float:
    return scale


def _scale_and_another(bench: Bench, singles: list[tuple[str, Change]]) -> Iterator[Match]:
    """An unknown scale together with another mistake: a coarse look at all, a fine one at the nearest."""
    first = bench.observed[0]

    def nearest(change: Change) -> float:
        scales: list[Scale] = [partial(_constant, math.exp(at)) for at in _GRID[3:24:3]]
        return min(bench.error(replace(RIGHT, **change, scale=scale), first) for scale in scales)

    candidates = [(nearest(change), name, change) for name, change in singles if "scale" not in change]
    for _, name, change in sorted(candidates, key=lambda c: c[0])[:3]:
        yield from _fitted_scale(bench, (name, change))


def _scale_in_words(scale: float) -> str:
    width = round(scale**-2)
    root = f" = 1/√{width}" if width and abs(width**-0.5 - scale) < 1e-4 * scale else ""
    return f"the scores are multiplied by {scale:.4g}{root}, whatever the head's width"


def _unlikely(match: Match, source: str) -> int:
    """Where two mistakes give the same numbers, the source may tell which one was made."""
    if "scaled-twice" in match.names or "scaled-by-width" in match.names:
        roots = len(re.findall(r"sqrt|\*\* ?-?0?\.5|scaled_dot_product_attention", source))
        return int(("scaled-twice" in match.names) == (roots < 2))
    return 0
