"""What the judges of several lessons share: outcomes from the checker and from variants, and pictures.

A learner's answer is named by the wrong way of the task that gives the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from regard.checker.errors import CheckError
from regard.learn.judges.common.relations import is_equal
from regard.learn.lesson import NotDoneError, Outcome, WeightPicture
from regard.learn.wrong_ways import define, find_mistake, read_pairs, wrong_ways
from regard.stages.example import TOKENS
from regard.support.quick_torch import complete_torch

if TYPE_CHECKING:
    from regard.checker.reports.report import Report


def check_attention(
    name: str,
    thing: Any,
    done: str,
    *,
    lesson: str = "",
    **options: Any,
) -> Outcome:
    """Judge an attention with the checker.

    Arguments:
        name: of the task.
        thing: the learner's function, module or class.
        done: what to say if it is right.
        lesson: the noun of a lesson whose table has `hints`, how to fix a mistake or warning of a name in the
            lesson's own names, and `effects`, what it does in words that the lesson has used by then.
        options: keyword arguments of `regard.check`.
    """
    # Here, since not every lesson needs the checker, which is imported slowly, and moves modules to "meta".
    complete_torch()
    from regard.checker.checker import check

    try:
        hints, effects = (
            dict(read_pairs(lesson, name, key)) if lesson else {} for key in ("hints", "effects")
        )
        outcome = outcome_of_report(name, check(thing, **options), done, hints)
        return replace(outcome, message=effects.get(outcome.mistake, outcome.message))
    except CheckError as error:
        return Outcome(name, "wrong", str(error))


def outcome_of_report(name: str, report: Report, done: str, hints: dict[str, str]) -> Outcome:
    """Return the outcome that a report of the checker amounts to: the mistake's name and effect first.

    Warnings do not make it wrong: they are added to what is said. `hints` are in the lesson's own names.
    """
    if report.ok:
        warnings = [f" One warning, {warning.name}: {warning.what}" for warning in report.diagnoses]
        fixes = [hints.get(warning.name, warning.fix) for warning in report.diagnoses]
        return Outcome(name, "done", done + "".join(warnings), hint="; ".join(fixes))
    named = [diagnosis for diagnosis in report.diagnoses if not diagnosis.warning]
    if named:
        first = named[0]
        # The effect is that of queries and keys which share a projection, and here that of values is unused.
        is_of_values = first.name == "one-projection" and "on `W_v.weight`" in first.what
        effect = "" if is_of_values else f"{first.effect} "
        return Outcome(name, "wrong", f"{effect}{first.what}", first.name, hints.get(first.name, ""))
    if report.verdict == "wrong":
        failures = "; ".join(str(failure) for failure in report.failures[:2])
        hint = report.example.removeprefix("No mistake of the catalogue gives these numbers. ")
        return Outcome(name, "wrong", f"no known mistake explains it: {failures}", hint=hint)
    # What follows is advice for someone who has an attention of another kind.
    reason = report.undecided.partition("; pass your own")[0]
    return Outcome(name, "wrong", f"no known mistake gives these numbers: {reason}")


def named_mistake(mistake: str, evidence: str = "", hint: str = "") -> NotDoneError:
    """Return what to raise for a mistake of the catalogue or of `mistakes`, with what shows it."""
    entry = find_mistake(mistake)
    assert entry is not None, mistake
    return NotDoneError(f"{entry.effect} {evidence}".strip(), mistake, hint)


def find_overwritten(name: str, arguments: Sequence[Any], originals: Sequence[Any]) -> Outcome | None:
    """Return the outcome for code that has changed its arguments, of which there are copies; else None."""
    for argument, original in zip(arguments, originals, strict=True):
        if isinstance(argument, Tensor) and not torch.equal(argument, original):
            problem = named_mistake("input-overwritten", "One of its arguments has changed.")
            return problem.outcome(name)
    return None


def drops_weights(cls: Any, init: dict[str, Any], x: Tensor) -> bool:
    """Return whether the dropout of a causal module drops some of its weights."""
    dropped = attend(cls(**init | {"dropout": 0.5}).train(), x)[1]  # (…, T, T)
    visible = torch.ones(dropped.shape[-2:], dtype=torch.bool).tril()
    return bool((dropped[..., visible] == 0).any())


def is_right(judge: Callable[[Any, ModuleType], Outcome], thing: Any, module: ModuleType) -> bool:
    """Return whether another thing of the learner's file, which a task needs, is right already."""
    try:
        return judge(thing, module).status == "done"
    except Exception:  # it has lines that are still to be written, or an error, which its own outcome tells
        return False


def example_picture(titles: list[str], weights: list[Tensor], rows: list[str] | None = None) -> WeightPicture:
    """Return weights (T, S) over the tokens of the running example as a picture, one for each title."""
    tokens = list(TOKENS)
    return WeightPicture(titles, rows or tokens, tokens, [matrix.detach().tolist() for matrix in weights])


def attend(module: Any, *inputs: Tensor) -> Any:
    """Return the output and the weights: of the method `attention`, or of a forward pass without one."""
    return module.attention(*inputs) if hasattr(module, "attention") else module(*inputs)


class Variant(NamedTuple):
    """A wrong way to do a task: what it gives, and what is said about it.

    A `mistake` of the catalogue or of `mistakes` brings its effect; `said` replaces it, where the lesson has
    words of its own.
    """

    answer: Tensor
    mistake: str = ""
    said: str = ""
    hint: str = ""

    def problem(self) -> NotDoneError:
        """Return what is said to a learner whose answer this is."""
        entry = find_mistake(self.mistake)
        effect = entry.effect if entry else ""
        return NotDoneError(self.said or effect, self.mistake, self.hint)


def edited_variants(noun: str, task: str, run: Callable[[Any], Tensor]) -> Iterator[Variant]:
    """Yield what each wrong way of a task gives: `run` gets the edited class or function of the solution."""
    for way in wrong_ways(noun, task):
        edited = define(noun, task, way.right, way.wrong)
        yield Variant(run(edited), way.mistake, way.said, way.hint)


def reject_variants(answer: Tensor, variants: Iterable[Variant]) -> None:
    """Raise what is said of the first variant that a learner's answer equals."""
    for variant in variants:
        if is_equal(answer, variant.answer):
            raise variant.problem()


SHARPNESS = 3.0


def seeking_queries() -> Tensor:
    """Return W_q (3, 2): the query of a token is the sum of its numbers, and 0."""
    return torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0]])


def seeking_keys(high: int, low: int) -> Tensor:
    """Return W_k (3, 2): the key of a token is large if its number `high` is above its number `low`."""
    weight = torch.zeros(3, 2)
    weight[high, 0], weight[low, 0] = SHARPNESS, -SHARPNESS
    return weight
