"""Tasks that are a function of tensors: cases, wrong ways, and one judge for all of them.

The right way is the lesson's solution, and a wrong one an edit of it.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import combinations, pairwise
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.learn.judges.tables.edits import define, definition, edit, lines_to_write, statements_with
from regard.learn.judges.tables.first_run import error_outcome
from regard.learn.judges.tables.inputs import input_generator
from regard.learn.judges.tables.relations import describe_relation
from regard.learn.judges.tables.variants import Variant, find_variant
from regard.learn.judges.tables.verdicts import (
    check_attention,
    find_overwritten,
    is_right,
    largest_difference,
)
from regard.learn.lesson import Outcome, Task, Trial, UsualMistake

TOLERANCE = 1e-4
# These functions take tensors with and without an axis for texts, of which the general hint speaks.
INDEX = (
    "out of bounds for dimension",
    "an index has to stay below the size of the axis that it counts along",
)
IN_ORDER = "torch.stack(…, dim=n) puts the new axis at place n, and .transpose(m, n) exchanges two"
NAN, INFINITY = 1.2345e5, 2.3456e5  # numbers that no right answer has, in place of what equals nothing


class Case(NamedTuple):
    """Arguments that a function is called with, and what is special about them: "with blocks of 3 keys".

    `reason` is said where no wrong way explains the first result and this is the first case in which it is
    wrong; a `hint` of the case then replaces that of the result.
    """

    special: str
    arguments: tuple[Any, ...]
    reason: str = ""
    hint: str = ""


class Result(NamedTuple):
    """One of the things that a function returns: its name, its axes, and a hint for where it is wrong.

    Without one the hint is every line that the learner writes.
    """

    name: str
    axes: str
    hint: str = ""


class WrongWay(NamedTuple):
    """An edit that makes the solution wrong, and what is said to a learner whose answers are the same.

    `right` is a part of the solution, and `wrong` what replaces it; of several lines each is a part. A
    `mistake` of the catalogue or of `mistakes` brings its effect; `said` replaces it, where the lesson has
    words of its own. The hint is the solution's line, unless there is a better `hint`.
    """

    right: str
    wrong: str
    mistake: str = ""
    said: str = ""
    hint: str = ""

    def for_values_too(self) -> WrongWay:
        """Return the same way for the values as for the keys, both at once."""
        right, wrong = (text + "\n" + re.sub(r"\bk\b", "v", text) for text in self[:2])
        return self._replace(right=right, wrong=wrong)


@dataclass(frozen=True)
class FunctionTask:
    """A function that the learner writes, compared with that of the solution on every case.

    `lesson` is the lesson's noun. `error_hints` are for errors, each with a part of the error's text. If
    `attends` is given, the checker is asked about what no wrong way explains: it makes of the learner's
    function an attention (q, k, v), which is checked with `options`. A function that calls another one of
    the file waits until `after` is right. `shortcut` is asked about a function that is right: it says which
    part of the lesson it leaves out, or "". The results that others are made of are `judged_first`, by their
    names.
    """

    lesson: str
    name: str
    cases: Callable[[], tuple[Case, ...]]
    results: tuple[Result, ...]
    wrong_ways: tuple[WrongWay, ...]
    done: str
    error_hints: tuple[tuple[str, str], ...] = ()
    attends: Callable[[Any], Callable[..., Any]] | None = None
    options: dict[str, Any] = field(default_factory=dict)
    after: FunctionTask | None = None
    shortcut: Callable[[Callable[..., Any]], str] = lambda function: ""
    judged_first: tuple[str, ...] = ()

    @property
    def right(self) -> Any:
        """The function of the solution."""
        return define(self.lesson, self.name)

    def task(self) -> Task:
        """Return it as a task of a lesson."""
        trials = tuple(Trial(partial(self._arguments, number)) for number in range(len(self.cases())))
        summaries = frozenset(map(self._hint, self.results))
        error_hints = frozenset(hint for _, hint in self.error_hints)
        return Task(
            self.name,
            self.judge,
            trials=trials,
            summaries=summaries,
            error_hints=error_hints,
            is_quick=True,
        )

    def _hint(self, result: Result) -> str:
        return result.hint or lines_to_write(self.lesson, self.name)

    def _arguments(self, number: int) -> tuple[Any, ...]:
        return self.cases()[number].arguments

    def judge(self, function: Any, module: ModuleType) -> Outcome:
        """Run the learner's function on every case, and name what is wrong."""
        if not callable(function):
            said = f"expected a function, got {type(function).__name__}"
            return Outcome(self.name, "wrong", said, hint=f"def {self.name}(…):")
        if self.after and not is_right(self.after.judge, getattr(module, self.after.name, None), module):
            said = f"it waits for `{self.after.name}`, which is not right yet: correct that first"
            return Outcome(self.name, "unfinished", said)
        cases, answers, expected = self.cases(), [], []
        overwritten: Outcome | None = None
        for case in cases:
            arguments = _copied(case.arguments)
            try:
                answer = function(*arguments)
            except NotImplementedError:
                raise
            except Exception as error:
                outcome = error_outcome(self.name, error, module, (*self.error_hints, INDEX))
                return replace(outcome, hint=outcome.hint or self._hint(self.results[0]))
            if wrong := self._wrong_kind(answer):
                return wrong
            answers.append(_tensors(answer))
            expected.append(_tensors(self.right(*case.arguments)))
            overwritten = overwritten or find_overwritten(self.name, arguments, case.arguments)
        wrong = self._wrong_form(cases, answers, expected) or overwritten
        if wrong is None and largest_difference(_flat(answers), _flat(expected)) < TOLERANCE:
            if left_out := self.shortcut(function):
                return Outcome(self.name, "unfinished", left_out, hint=self._hint(self.results[0]))
            return Outcome(self.name, "done", self.done)
        first = self._first_wrong(answers, expected)
        numbers = _flat(answers, first)
        return (
            find_variant(self.name, numbers, self.variants(cases, first), TOLERANCE)
            or wrong
            or self._checked(function, answers)
            or self._two_wrong_ways(cases, [parts[first] for parts in answers], first)
            or self._describe(cases, answers, expected)
        )

    def variants(self, cases: tuple[Case, ...], result: int | None = None) -> Iterator[Variant]:
        """Yield what each wrong way gives on the cases: all results, or the one with a number."""
        for way in self.wrong_ways:
            compute = define(self.lesson, self.name, way.right, way.wrong)
            answers = [_tensors(compute(*_copied(case.arguments))) for case in cases]
            yield Variant(_flat(answers, result), way.mistake, way.said, self.hint_for(way))

    def _two_wrong_ways(self, cases: tuple[Case, ...], answers: list[Tensor], result: int) -> Outcome | None:
        """Return what is said about the first of two wrong ways that together give a result on each case."""
        text = definition(self.lesson, self.name)
        spans = {
            way: [(text.index(part), text.index(part) + len(part)) for part in way.right.split("\n")]
            for way in self.wrong_ways
        }
        for pair in combinations(sorted(self.wrong_ways, key=lambda way: min(spans[way])), 2):
            if any(end > start for (_, end), (start, _) in pairwise(sorted(spans[pair[0]] + spans[pair[1]]))):
                continue  # both change the same text
            right, wrong = ("\n".join(texts) for texts in zip(*(way[:2] for way in pair), strict=True))
            # Either edit is Python, and what the two are together may raise an error.
            with contextlib.suppress(Exception):
                compute = define(self.lesson, self.name, right, wrong)
                if all(
                    _is_equal(_flat([_tensors(compute(*_copied(case.arguments)))], result), _flat([[answer]]))
                    for case, answer in zip(cases, answers, strict=True)
                ):
                    first = Variant(answers[0], pair[0].mistake, pair[0].said, self.hint_for(pair[0]))
                    said = first.outcome(self.name)
                    return replace(said, message=f"{said.message.rstrip('.')}. There is one more mistake.")
        return None

    def hint_for(self, way: WrongWay) -> str:
        """Return what to write in the place of a wrong way."""
        return way.hint or statements_with(self.lesson, self.name, way.right)

    def _first_wrong(self, answers: list[list[Tensor]], expected: list[list[Tensor]]) -> int:
        """Return the number of the first result that is wrong in any case.

        By it alone a wrong way is known: whether the others follow from it depends on how it is written.
        """
        order = sorted(range(len(self.results)), key=lambda n: self.results[n].name not in self.judged_first)
        # The first if none is: a mask of 0.0 and 1.0 is wrong and has the right numbers.
        return next((n for n in order if not _is_equal(_flat(answers, n), _flat(expected, n))), order[0])

    def _wrong_kind(self, answer: Any) -> Outcome | None:
        """Return what is wrong with the number or the types of the results; None if nothing is."""
        names = ", ".join(result.name for result in self.results)
        parts = answer if isinstance(answer, tuple) else (answer,)
        if len(parts) == len(self.results) and all(isinstance(x, Tensor | int | float) for x in parts):
            return None
        got = "None" if answer is None else ", ".join(type(part).__name__ for part in parts)
        said = f"expected it to return {names}; it returns {got}"
        hint = "torch.stack(…) makes one tensor of a list" if list in map(type, parts) else f"return {names}"
        return Outcome(self.name, "wrong", said, hint=hint)

    def _wrong_form(
        self, cases: tuple[Case, ...], answers: list[list[Tensor]], expected: list[list[Tensor]]
    ) -> Outcome | None:
        """Return what is wrong with the shape or the dtype of a result; None if nothing is."""
        for case, parts, rights in zip(cases, answers, expected, strict=True):
            for result, part, right in zip(self.results, parts, rights, strict=True):
                said, hint = "", self._hint(result)
                if part.shape != right.shape:
                    shape = (
                        f"{tuple(right.shape)}, which is {result.axes}" if result.axes else "as one number"
                    )
                    said = f"{case.special}, expected `{result.name}` {shape}; got {tuple(part.shape)}"
                    if sorted(part.shape) == sorted(right.shape):
                        said, hint = f"{said}: its axes stand in another order", IN_ORDER
                elif right.dtype == torch.bool != part.dtype:
                    said = (
                        f"`{result.name}` holds {part.dtype}; expected torch.bool, True where it is visible"
                    )
                if said:
                    return Outcome(self.name, "wrong", said, hint=hint)
        return None

    def _checked(self, function: Any, answers: list[list[Tensor]]) -> Outcome | None:
        """Return the checker's outcome, if it knows the mistake."""
        # The checker takes NaN for that of a mask, whatever made it.
        if self.attends is None or not all(part.isfinite().all() for parts in answers for part in parts):
            return None
        outcome = check_attention(self.name, self.attends(function), "", **self.options)
        return outcome if outcome.mistake and outcome.status == "wrong" else None

    def _describe(
        self, cases: tuple[Case, ...], answers: list[list[Tensor]], expected: list[list[Tensor]]
    ) -> Outcome:
        """Return the outcome where nothing is known: which result is off in which case, and by how much.

        The first result that is off in any case is named: others may follow from it.
        """
        index = self._first_wrong(answers, expected)
        result = self.results[index]
        differences = [largest_difference(a[index], b[index]) for a, b in zip(answers, expected, strict=True)]
        good = [case.special for case, x in zip(cases, differences, strict=True) if x <= TOLERANCE]
        at = next(at for at, x in enumerate(differences) if x > TOLERANCE)
        case, x = cases[at], differences[at]
        how = f"is off by up to {x:.2g}" if x < torch.inf else "holds NaN or inf"
        answer, right = answers[at][index], expected[at][index]
        if relation := describe_relation(answer, right):
            how = relation + (f": {answer:.4g}, not {right:.4g}" if right.ndim == 0 else "")
        elif right.dtype == torch.bool:
            row = int((answer != right).any(-1).nonzero()[0])
            how = (
                f"has {answer[row].int().tolist()} in row {row}, and should have {right[row].int().tolist()}"
            )
        also = f"; it is right {', '.join(good)}" if good else ""
        why = f". {case.reason}" if case.reason and index == 0 else ""
        said = f"{case.special}, `{result.name}` {how}{also}{why}"
        return Outcome(self.name, "wrong", said, hint=case.hint or self._hint(result))


def usual(functions: Sequence[FunctionTask], *names: str) -> tuple[UsualMistake, ...]:
    """Return the first wrong way of each of these names as a usual mistake."""
    ways = {
        way.mistake: UsualMistake(
            way.mistake,
            definition(function.lesson, function.name),
            edit(function.lesson, function.name, way.right, way.wrong),
        )
        for function in reversed(functions)
        for way in reversed(function.wrong_ways)
    }
    return tuple(ways[name] for name in names)


def draw(*shape: int, seed: int) -> Tensor:
    """Return random numbers, the same for a number and the seed of the judge's inputs."""
    return torch.randn(*shape, generator=input_generator(seed))


def _copied(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments with tensors of their own, which a function may overwrite."""
    return tuple(x.clone() if isinstance(x, Tensor) else x for x in arguments)


def _tensors(answer: Any) -> list[Tensor]:
    return [torch.as_tensor(part).detach() for part in (answer if isinstance(answer, tuple) else (answer,))]


def _is_equal(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and largest_difference(a, b) < TOLERANCE


def _flat(answers: list[list[Tensor]], result: int | None = None) -> Tensor:
    """The numbers of all results, or of the one with a number, in one row.

    NaN is a number there, so that a wrong way may give it too.
    """
    chosen = [parts if result is None else parts[result : result + 1] for parts in answers]
    numbers = torch.cat([part.double().flatten() for parts in chosen for part in parts])
    return torch.nan_to_num(numbers, nan=NAN, posinf=INFINITY, neginf=-INFINITY)
