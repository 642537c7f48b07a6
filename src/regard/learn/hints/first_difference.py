"""Where a learner's code first differs from the solution, found by running both on the same numbers.

What every line assigns is recorded in both runs and compared: by the name of the function, the name of the
variable, and the how manieth assignment to it. The first that differs is where the mistake is, and the
solution's line is what to write there. This file knows no lesson and no mistake.
"""

from __future__ import annotations

import ast
import math
import re
import traceback
import warnings
from collections import defaultdict
from collections.abc import Iterator
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from regard.learn.exercise import one_line
from regard.learn.hints.errors import GENERAL_DIFFERENCE
from regard.learn.hints.trial_run import Assignment, Key, Program, TrialRun, load, run_trial, targets_of
from regard.learn.judges.common.relations import describe_relation
from regard.learn.lesson import Trial

TOLERANCE = 1e-5
# What a test of the learner's answers in the end: it is right by chance, whatever the lines before it do.
CONSTANT = re.compile(r"return (True|False|None)")

MOST = 6  # lines that are followed, one after another


class LineDifference(NamedTuple):
    """The first assignment that differs: its line and name, what is said about it, and the right line.

    `raised` is whether the line raised an error, and `said` is empty then. With `after`, the right line is
    missing after this one.
    """

    line: int
    name: str
    said: str
    right: str
    raised: bool = False
    after: bool = False
    is_loop: bool = False  # whether the line is that of a loop, which is to be replaced as a whole
    step: str = ""  # the right line in the solution's names, if `right` is in others


def find_differences(task: str, trial: Trial, module: ModuleType, solution: str) -> list[LineDifference]:
    """Return where the learner's `task` differs from that of the solution, in order; [] if it cannot be told.

    The line to write is put into the learner's program and run, and so is what differs next. Only if this
    leads to the solution's result, and never to a new error, the lines are returned: a learner may have
    divided the work otherwise, and then a line of the solution has no place in it. The numbers of the lines
    are those of the learner's file.

    Arguments:
        task: the name of a function or class, in both programs.
        trial: how it is run.
        module: the learner's file.
        solution: the text of the solution.
    """
    path = str(module.__file__)
    with open(path, encoding="utf-8") as file:
        mine = Program(file.read(), path, vars(module))
    right = load(solution, "<solution>")
    differences: list[LineDifference] = []
    inserted: list[int] = []  # after which lines, in their order
    had_error = True
    # fork_rng: the judges' random state stays as it was.
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        for _ in range(MOST):
            own = run_trial(mine, task, trial, {})
            expected = run_trial(right, task, trial, own.state)
            # A yes or no may be right by chance, and a module has attributes beside its result.
            is_telling = trial.init is None and isinstance(expected.result, Tensor | tuple)
            if (
                own.error is None
                and values_agree(own.result, expected.result)
                and (differences or is_telling)
            ):
                return differences
            if own.error is not None and not had_error:
                return []
            # The solution's line reads a name that this code does not have: only what is wrong can be said.
            if differences and isinstance(own.error, NameError):
                first = differences[0]._replace(right="")
                return [first] if "should be" in first.said else []
            had_error = own.error is not None
            difference = _compare(_Runs(own, expected, right, mine), own.error, mine)
            if difference is None or CONSTANT.fullmatch(difference.right):
                return []
            difference = _with_whole_loop(difference, mine)
            mine = mine.with_line(difference.line, difference.right, difference.after)
            differences.append(difference._replace(line=_original_line(difference.line, inserted)))
            if difference.after:
                inserted.append(difference.line)
    return []


def _original_line(number: int, inserted: list[int]) -> int:
    """The number that a line had before lines were inserted, each after another line."""
    for line in reversed(inserted):
        number -= number > line
    return number


def _with_whole_loop(difference: LineDifference, mine: Program) -> LineDifference:
    """The difference, of a loop that fills a tensor number by number, at the loop: it is what to replace."""
    for loop in ast.walk(ast.parse(mine.text)):
        if not isinstance(loop, ast.For) or difference.after or "[" in difference.right.partition("=")[0]:
            continue
        inner = [node for node in ast.walk(loop) if isinstance(node, ast.stmt) and not hasattr(node, "body")]
        fills = all(isinstance(getattr(node, "targets", [None])[0], ast.Subscript) for node in inner)
        # The outermost loop comes first.
        if fills and any(node.lineno == difference.line for node in inner):
            return difference._replace(line=loop.lineno, is_loop=True)
    return difference


class _Runs:
    """The assignments of both runs, by their keys and in their order."""

    def __init__(self, own: TrialRun, expected: TrialRun, solution: Program, mine: Program) -> None:
        self.own, self.expected = own.assignments, expected.assignments
        self.solution, self.mine = solution, mine
        self.own_by_key: dict[Key, list[Assignment]] = defaultdict(list)
        self.expected_by_key: dict[Key, list[Assignment]] = defaultdict(list)
        for assignments, by_key in ((self.own, self.own_by_key), (self.expected, self.expected_by_key)):
            for assignment in assignments:
                by_key[assignment.key].append(assignment)

    def replaced(self, assignment: Assignment, match: Assignment, said: str) -> LineDifference:
        """The difference that a line is which should be another."""
        line = line_of(match.statement, self.solution)
        return LineDifference(assignment.statement.lineno, assignment.name, said, line)

    def lone_expression(self, match: Assignment) -> ast.Expr | None:
        """The right expression, where it stands with nothing to hold its result."""
        value = getattr(match.statement, "value", None)
        for node in ast.walk(ast.parse(self.mine.text)):
            if isinstance(node, ast.Expr) and value and ast.dump(node.value) == ast.dump(value):
                return node
        return None

    def is_elsewhere(self, match: Assignment) -> bool:
        """Whether a line that this trial did not run, such as one for training alone, assigns that name."""
        return _targets_in(self.mine, match.function).count(match.name) > len(self.own_by_key[match.key])

    def missing(self, match: Assignment) -> LineDifference | None:
        """The difference that a line of the solution is which was left out."""
        said = f"a line that changes `{match.name}` is missing, or its result is not assigned"
        if match.name.endswith("()"):
            said = f"the call {match.name.removesuffix('()')}(…) is missing"
        if lone := self.lone_expression(match):
            return LineDifference(lone.lineno, match.name, said, line_of(match.statement, self.solution))
        # A line that does a part of it, such as `q = rotate(q)` for both q and k, is the one to replace.
        for name in targets_of(match.statement):
            number = _position(self.expected_by_key[match.function, name], match.statement)
            made = self.own_by_key[match.function, name]
            if number is not None and number < len(made):
                return self.replaced(made[number], match, said)
        if self.is_elsewhere(match):
            return None
        before = [a for a in self.expected[: self.expected.index(match)] if a.function == match.function]
        for previous in reversed(before):
            number = _position(self.expected_by_key[previous.key], previous.statement) or 0
            made = self.own_by_key[previous.key]
            if number < len(made):
                line = line_of(match.statement, self.solution)
                return LineDifference(made[number].statement.lineno, match.name, said, line, after=True)
        return None


def _targets_in(program: Program, function: str) -> list[str]:
    """The names that the statements of a function assign, each as often as it is assigned."""
    definitions = (x for x in ast.walk(ast.parse(program.text)) if isinstance(x, ast.FunctionDef))
    bodies = (node for x in definitions if x.name == function for node in ast.walk(x))
    return [name for node in bodies if isinstance(node, ast.stmt) for name in targets_of(node)]


def _position(assignments: list[Assignment], statement: ast.stmt) -> int | None:
    """The how manieth of some assignments a statement makes."""
    return next((n for n, assignment in enumerate(assignments) if assignment.statement is statement), None)


def _compare(runs: _Runs, error: Exception | None, mine: Program) -> LineDifference | None:
    """Return the first difference of two runs, of which the learner's has ended with this error."""
    counts: dict[Key, int] = defaultdict(int)
    for assignment in runs.own:
        made, matches = runs.own_by_key[assignment.key], runs.expected_by_key[assignment.key]
        number = counts[assignment.key]
        counts[assignment.key] += 1
        # Someone who assigns more or less often has divided the work otherwise: the last one has to agree.
        if error is None and matches and len(made) != len(matches):
            if number < len(matches) and _is_same(assignment.statement, matches[number].statement):
                continue
            if number + 1 < len(made) or not describe_difference(assignment, matches[-1].value):
                continue
            if number < len(matches) and not describe_difference(assignment, matches[number].value):
                # The same line once more is another round of a loop, which has ended earlier.
                if any(match.statement is matches[number + 1].statement for match in matches[: number + 1]):
                    continue
                return runs.missing(matches[number + 1])
            number = len(matches) - 1
        if number >= len(matches):
            continue
        match = matches[number]
        # A line that is the solution's own is not to blame for what it was given.
        if not _is_same(assignment.statement, match.statement) and (
            said := describe_difference(assignment, match.value)
        ):
            return runs.replaced(assignment, _beside(runs, assignment, match, counts), said)
    if error is None:
        return _find_unset(runs)
    raising = _find_raising(error, counts, runs, mine)
    unset = None if raising else _find_unset(runs, has_ended=False)
    # A line that raised an error and has no counterpart stands where the missing one should.
    if unset is not None and unset.after and (line := _unknown_line(error, runs, mine)):
        return unset._replace(line=line, after=False)
    return raising or unset


def _beside(runs: _Runs, assignment: Assignment, match: Assignment, counts: dict[Key, int]) -> Assignment:
    """The assignment of the solution that a line with several names belongs to.

    For `q, k, v = rotate(q), …`, where only v is wrong, it is that of q and k.
    """
    for name in targets_of(assignment.statement):
        number = counts[assignment.function, name] - 1
        matches = runs.expected_by_key[assignment.function, name]
        if 0 <= number < len(matches):
            return matches[number]
    return match


def _find_unset(runs: _Runs, has_ended: bool = True) -> LineDifference | None:
    """The difference that a call, or an assignment, is which the learner's code leaves out.

    `has_ended` is whether the learner's run came to its end, so that a missing result counts, too.
    """
    known = {assignment.key for assignment in runs.expected}
    for match in runs.expected:
        made = [assignment for assignment in runs.own if assignment.function == match.function]
        number = _position(runs.expected_by_key[match.key], match.statement) or 0
        if not made or len(runs.own_by_key[match.key]) > number or runs.is_elsewhere(match):
            continue
        plain = runs.own_by_key[match.function, match.name.removeprefix("self.")]
        if match.name.startswith("self.") and plain:
            said = f"`{plain[0].name}` ends with {match.function}; what the module keeps is {match.name}"
            return runs.replaced(plain[0], match, said)
        is_result = match.name == "return"
        if is_result and not has_ended:
            continue
        # Another line may have been written in its place.
        is_call = match.name.endswith(")")
        others = [a for a in made if a.key not in known and "." in a.name]
        if function_result := [a for a in made if a.name == "return" and a.key not in known]:
            others = function_result
        if others:
            return runs.replaced(
                others[0], match, f"{match.function} needs a different line in place of this one"
            )
        is_attribute = match.name.startswith("self.")
        if is_result or number or is_attribute or is_call or runs.lone_expression(match):
            if found := runs.missing(match):
                return found
            if is_call:  # super().__init__(), which no line stands before: the error says it
                return None
            return runs.replaced(made[-1], match, f"{match.function} needs this line")
    return None


def _raising(error: Exception, mine: Program) -> Iterator[tuple[str, ast.stmt, list[str]]]:
    """Yield the statements that an error passed, from the innermost, each with its function and its names."""
    frames = [f for f in traceback.walk_tb(error.__traceback__) if f[0].f_code.co_filename == mine.file]
    for frame, line in reversed(frames):
        for statement in ast.walk(ast.parse(mine.text)):
            if isinstance(statement, ast.stmt) and statement.lineno == line:
                names = ["return"] if isinstance(statement, ast.Return) else targets_of(statement)
                yield frame.f_code.co_name, statement, names


def _unknown_line(error: Exception, runs: _Runs, mine: Program) -> int | None:
    """The line that raised an error, if the solution assigns nothing of its names; else None."""
    for function, statement, names in _raising(error, mine):
        known = any(runs.expected_by_key[function, name] for name in names)
        return statement.lineno if names and not known else None
    return None


def _is_same(mine: ast.stmt, right: ast.stmt) -> bool:
    return ast.dump(mine) == ast.dump(right)


def describe_difference(assignment: Assignment, expected: Any) -> str:
    """Return how a value differs from the expected one; "" if it does not."""
    value = _as_bool(assignment.value, expected)
    name = "what it returns" if assignment.name == "return" else f"`{assignment.name}`"
    if isinstance(expected, Tensor) and isinstance(value, Tensor):
        if value.shape != expected.shape:
            return f"{name} is {tuple(value.shape)} and should be {tuple(expected.shape)}"
        if expected.dtype == torch.bool and value.dtype != torch.bool:
            return f"{name} holds numbers and should hold True and False"
    if values_agree(value, expected):
        return ""
    if isinstance(expected, Tensor) != isinstance(value, Tensor):
        return f"{name} is {_kind(value)} and should be {_kind(expected)}"
    if isinstance(expected, int | float | nn.Linear):
        return f"{name} is {value!r:.70} and should be {expected!r:.70}"
    if isinstance(expected, Tensor) and expected.dtype == torch.bool and expected.ndim > 1:
        *_, row, column = (value != expected).nonzero()[0].tolist()
        is_true = bool(value[tuple((value != expected).nonzero()[0])])
        return f"{name} is {is_true} in row {row}, column {column}, and should be {not is_true}"
    if isinstance(expected, Tensor) and (relation := describe_relation(value, expected)):
        return f"{name} {relation}"
    return f"{name} {GENERAL_DIFFERENCE}"


def _kind(value: Any) -> str:
    if isinstance(value, tuple):
        return f"a tuple of {len(value)}"
    if isinstance(value, nn.Module):
        return f"a module, {type(value).__name__}"
    return "a tensor" if isinstance(value, Tensor) else f"{value!r:.70}"


def _as_bool(value: Any, expected: Any) -> Any:
    """A value, or its one entry where a yes or no is expected: a tensor of one is as good."""
    is_one = isinstance(expected, bool) and isinstance(value, Tensor) and value.numel() == 1
    return bool(value) if is_one else value


def values_agree(value: Any, expected: Any) -> bool:
    """Return whether two values are the same, up to rounding; of kinds that cannot be compared they are."""
    value = _as_bool(value, expected)
    if isinstance(expected, Tensor) and isinstance(value, Tensor):
        same = value.shape == expected.shape and (expected.dtype != torch.bool or value.dtype == torch.bool)
        return same and torch.allclose(
            value.double(), expected.double(), TOLERANCE, TOLERANCE, equal_nan=True
        )
    if isinstance(expected, Tensor) or isinstance(value, Tensor):
        return False
    if isinstance(expected, nn.Linear) and isinstance(value, nn.Linear):
        return value.weight.shape == expected.weight.shape  # with or without a bias
    if isinstance(expected, tuple) and isinstance(value, tuple):
        pairs = zip(value, expected, strict=False)
        return len(value) == len(expected) and all(values_agree(a, b) for a, b in pairs)
    if isinstance(expected, nn.Module) and isinstance(value, nn.Module):
        return repr(value) == repr(expected)
    if (
        isinstance(expected, nn.Module | tuple)
        or isinstance(value, nn.Module | tuple | list)
        or value is None
    ):
        return type(value) is type(expected)
    if isinstance(expected, int | float) and isinstance(value, int | float):
        if isinstance(expected, int) and isinstance(value, float):
            return False  # a size is a whole number
        return math.isclose(value, expected, rel_tol=TOLERANCE)
    return True


def _find_raising(
    error: Exception, counts: dict[Key, int], runs: _Runs, mine: Program
) -> LineDifference | None:
    """The difference that a line which raised an error is: all before it is right."""
    # From the innermost: what it was given may be the caller's mistake.
    for function, statement, names in _raising(error, mine):
        for name in names:
            matches = runs.expected_by_key[function, name]
            number = min(counts[function, name] + 1, len(matches))
            if number and not _is_same(statement, matches[number - 1].statement):
                right = line_of(matches[number - 1].statement, runs.solution)
                return LineDifference(statement.lineno, name, "", right, raised=True)
    return None


def line_of(statement: ast.stmt, program: Program) -> str:
    """Return the text of a statement, on one line and without its comment."""
    return one_line(ast.get_source_segment(program.text, statement) or "")
