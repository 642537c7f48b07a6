"""Tables of variants: what wrong ways of a task give. A learner's answer is named by the one it equals."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from torch import Tensor

from regard.learn.judges.tables.equality import is_equal
from regard.learn.lesson import Outcome
from regard.learn.mistakes import find_mistake
from regard.learn.wrong_ways import define, wrong_ways


class Variant(NamedTuple):
    """A wrong way to do a task: what it gives, and what is said about it.

    A `mistake` of the catalogue or of `mistakes` brings its effect; `said` replaces it, where the lesson has
    words of its own.
    """

    answer: Tensor
    mistake: str = ""
    said: str = ""
    hint: str = ""

    def outcome(self, task: str) -> Outcome:
        """Return what is said to a learner whose answer this is."""
        entry = find_mistake(self.mistake)
        effect = entry.effect if entry else ""
        return Outcome(task, "wrong", self.said or effect, self.mistake, self.hint)


def edited_variants(noun: str, task: str, run: Callable[[Any], Tensor]) -> Iterator[Variant]:
    """Yield what each wrong way of a task gives: `run` gets the edited class or function of the solution."""
    for way in wrong_ways(noun, task):
        edited = define(noun, task, way.right, way.wrong)
        yield Variant(run(edited), way.mistake, way.said, way.hint)


def find_variant(task: str, answer: Tensor, variants: Iterable[Variant]) -> Outcome | None:
    """Return the outcome of the first variant that a learner's answer equals; None if it equals none."""
    for variant in variants:
        if is_equal(answer, variant.answer):
            return variant.outcome(task)
    return None
