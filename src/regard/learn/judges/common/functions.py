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

from regard.learn.judges.common.first_run import error_outcome
from regard.learn.judges.common.relations import TOLERANCE, describe_relation, is_equal, largest_difference
from regard.learn.judges.common.verdicts import (
    Variant,
    check_attention,
    find_overwritten,
    is_right,
    reject_variants,
)
from regard.learn.lesson import NotDoneError, Outcome, Task, Trial
from regard.learn.wrong_ways import (
    WrongWay,
    define,
    definition,
    hint_for,
    judge_table,
    lines_to_write,
    read_pairs,
    sentence,
    wrong_ways,
)

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
    axes: str = ""
    hint: str = ""


@dataclass(frozen=True)
class FunctionTask:
    """A function that the learner writes, compared with that of the solution on every case.

    `lesson` is the lesson's noun: its file `judge.toml` has what is said, the `results`, the `errors`, each
    with a part of the error's text, and the wrong `ways`. Results that others are made of are `judged_first`.

    If `attends` is given, the checker is asked about what no wrong way explains: it makes of the learner's
    function an attention (q, k, v), which is checked with `options`. A function that calls another one of
    the file waits until `after` is right. `shortcut` is asked about a function that is right: it says which
    part of the lesson it leaves out, or "".
    """

    lesson: str
    name: str
    cases: Callable[[], tuple[Case, ...]]
    attends: Callable[[Any], Callable[..., Any]] | None = None
    options: dict[str, Any] = field(default_factory=dict)
    after: FunctionTask | None = None
    shortcut: Callable[[Callable[..., Any]], str] = lambda function: ""

    @property
    def table(self) -> dict[str, Any]:
        """What the lesson's file says of this function."""
        table: dict[str, Any] = judge_table(self.lesson)[self.name]
        return table

    @property
    def results(self) -> list[Result]:
        """The things that it returns."""
        return [Result(**result) for result in self.table["results"]]

    @property
    def error_hints(self) -> tuple[tuple[str, str], ...]:
        """Hints for errors, each after a part of the error's text."""
        return read_pairs(self.lesson, self.name, "errors")

    @property
    def wrong_ways(self) -> tuple[WrongWay, ...]:
        """The edits of the solution that are known to be wrong."""
        return wrong_ways(self.lesson, self.name)

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
        cases = self.cases()
        answers: list[list[Tensor]] = []
        expected: list[list[Tensor]] = []
        overwritten: Outcome | None = None
        for case in cases:
            arguments = _copied(case.arguments)
            try:
                answer = function(*arguments)
            except NotImplementedError:
                raise
            except Exception as error:
                # What is wrong in the cases before it comes first.
                before = cases[: len(answers)]
                if not before or self._agree(before, answers, expected):
                    return self._describe_error(error, module, cases[: len(answers) + 1])
                cases = before
                break
            if wrong := self._wrong_kind(answer):
                return wrong
            answers.append(_tensors(answer))
            expected.append(_tensors(self.right(*case.arguments)))
            overwritten = overwritten or find_overwritten(self.name, arguments, case.arguments)
        wrong = self._wrong_form(cases, answers, expected) or overwritten
        if overwritten is None and self._agree(cases, answers, expected):
            if left_out := self.shortcut(function):
                return Outcome(self.name, "unfinished", left_out, hint=self._hint(self.results[0]))
            return Outcome(self.name, "done", sentence(self.table["done"]))
        first = self._first_wrong(answers, expected)
        # What others are made of is right then, and a way that changes it is another mistake.
        made = self._made_first()
        told = (first,) if first in made else (*made, first)
        try:
            reject_variants(_flat(answers, told), self.variants(cases, told))
        except NotDoneError as known:
            return known.outcome(self.name)
        return (
            wrong
            or self._checked(function, answers)
            or self._two_wrong_ways(cases, [parts[first] for parts in answers], first)
            or self._describe(cases, answers, expected)
        )

    def _agree(
        self, cases: tuple[Case, ...], answers: list[list[Tensor]], expected: list[list[Tensor]]
    ) -> bool:
        is_formed = self._wrong_form(cases, answers, expected) is None
        return is_formed and is_equal(_flat(answers), _flat(expected))

    def _describe_error(self, error: Exception, module: ModuleType, cases: tuple[Case, ...]) -> Outcome:
        """Return the outcome for an error in the last of these cases; those before it are right."""
        outcome = error_outcome(self.name, error, module, (*self.error_hints, INDEX))
        said = outcome.message
        if len(cases) > 1:
            at = found.start() if (found := re.search(r"line \d+, ", said)) else 0
            works = f"It works {cases[0].special} and fails {cases[-1].special}"
            said = f"{said[:at]}{works}: {said[at:]}"
        return replace(outcome, message=said, hint=outcome.hint or self._hint(self.results[0]))

    def variants(self, cases: tuple[Case, ...], results: Sequence[int]) -> Iterator[Variant]:
        """Yield what each wrong way gives on the cases: the results with these numbers."""
        for way in self.wrong_ways:
            yield self._variant(way, self.numbers(cases, way.right, way.wrong, results))

    def _variant(self, way: WrongWay, numbers: Tensor) -> Variant:
        return Variant(numbers, way.mistake, way.said, hint_for(self.lesson, self.name, way))

    def numbers(
        self, cases: tuple[Case, ...], right: str = "", wrong: str = "", results: Sequence[int] = (0,)
    ) -> Tensor:
        """Return what the solution, or an edit of it, gives on the cases, in one row."""
        compute = define(self.lesson, self.name, right, wrong)
        return _flat([_tensors(compute(*_copied(case.arguments))) for case in cases], results)

    def _two_wrong_ways(self, cases: tuple[Case, ...], answers: list[Tensor], result: int) -> Outcome | None:
        """Return what is said about the first of two wrong ways that together give a result on each case."""
        text = definition(self.lesson, self.name)
        spans = {
            way: [(text.index(part), text.index(part) + len(part)) for part in way.right.split("\n")]
            for way in self.wrong_ways
        }
        for first, second in combinations(sorted(self.wrong_ways, key=lambda way: min(spans[way])), 2):
            if any(end > start for (_, end), (start, _) in pairwise(sorted(spans[first] + spans[second]))):
                continue  # both change the same text
            right, wrong = ("\n".join(texts) for texts in zip(first[:2], second[:2], strict=True))
            # Either edit is Python, and what the two are together may raise an error.
            with contextlib.suppress(Exception):
                # Case by case: most pairs differ in the first.
                if all(
                    is_equal(self.numbers((case,), right, wrong, (result,)), _flat([[answer]]))
                    for case, answer in zip(cases, answers, strict=True)
                ):
                    said = self._variant(first, answers[0]).problem().outcome(self.name)
                    return replace(said, message=f"{said.message.rstrip('.')}. There is one more mistake.")
        return None

    def _first_wrong(self, answers: list[list[Tensor]], expected: list[list[Tensor]]) -> int:
        """Return the number of the first result that is wrong in any case.

        By it alone a wrong way is known: whether the others follow from it depends on how it is written.
        """
        order = sorted(range(len(self.results)), key=lambda n: n not in self._made_first())
        # The first if none is: a mask of 0.0 and 1.0 is wrong and has the right numbers.
        return next((n for n in order if not is_equal(_flat(answers, (n,)), _flat(expected, (n,)))), order[0])

    def _made_first(self) -> list[int]:
        names = self.table.get("judged_first", ())
        return [n for n, result in enumerate(self.results) if result.name in names]

    def _wrong_kind(self, answer: Any) -> Outcome | None:
        """Return what is wrong with the number or the types of the results; None if nothing is."""
        names = ", ".join(result.name for result in self.results)
        parts = answer if isinstance(answer, tuple) else (answer,)
        if len(parts) == len(self.results) and all(isinstance(x, Tensor | int | float) for x in parts):
            return None
        got = (
            "None: is `return` missing?"
            if answer is None
            else ", ".join(type(part).__name__ for part in parts)
        )
        said = f"expected it to return {names}; it returns {got}"
        is_list = len(parts) == len(self.results) and list in map(type, parts)
        hint = "torch.stack(…) makes one tensor of a list" if is_list else f"return {names}"
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
                    if [x.shape for x in parts] == [x.shape for x in rights[::-1]]:
                        names = " and ".join(result.name for result in self.results)
                        said, hint = f"{said}: are {names} exchanged?", f"return {names}, in this order"
                    elif sorted(part.shape) == sorted(right.shape):
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


def _copied(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments with tensors of their own, which a function may overwrite."""
    return tuple(x.clone() if isinstance(x, Tensor) else x for x in arguments)


def _tensors(answer: Any) -> list[Tensor]:
    return [torch.as_tensor(part).detach() for part in (answer if isinstance(answer, tuple) else (answer,))]


def _flat(answers: list[list[Tensor]], results: Sequence[int] | None = None) -> Tensor:
    """The numbers of all results, or of those with these numbers, in one row.

    NaN is a number there, so that a wrong way may give it too.
    """
    chosen = [parts if results is None else [parts[n] for n in results] for parts in answers]
    numbers = torch.cat([part.double().flatten() for parts in chosen for part in parts])
    return torch.nan_to_num(numbers, nan=NAN, posinf=INFINITY, neginf=-INFINITY)
