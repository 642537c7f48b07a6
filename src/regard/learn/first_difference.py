"""Where a learner's code first differs from the solution, found by running both on the same numbers.

What every line assigns is recorded in both runs and compared: by the name of the function, the name of the
variable, and the how manieth assignment to it. The first that differs is where the mistake is, and the
solution's line is what to write there. This file knows no lesson and no mistake.
"""

from __future__ import annotations

import ast
import builtins
import copy
import math
import sys
import traceback
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from regard.learn.exercise import has_loop
from regard.learn.lesson import Trial

TOLERANCE = 1e-5
Key = tuple[str, str]  # of a function and of a variable


class Assignment(NamedTuple):
    """What a statement has given to a name of a function; the name of a result is "return"."""

    function: str
    name: str
    statement: ast.stmt
    value: Any

    @property
    def key(self) -> Key:
        """What an assignment of the other run must share to be compared with this one."""
        return self.function, self.name


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


class Program(NamedTuple):
    """A program that is loaded: its text, the name under which its frames are known, and what it defines."""

    text: str
    file: str
    names: dict[str, Any]


def load_solution(text: str) -> Program:
    """Run the text of a solution, and return it as a program."""
    program = Program(text, "<solution>", {"__name__": "solution"})
    exec(compile(text, program.file, "exec"), program.names)
    return program


def find_first_difference(
    task: str, trial: Trial, module: ModuleType, solution: str
) -> LineDifference | None:
    """Return where the learner's `task` first differs from that of the solution; None if it does not.

    Arguments:
        task: the name of a function or class, in both programs.
        trial: how it is run.
        module: the learner's file.
        solution: the text of the solution.
    """
    path = str(module.__file__)
    with open(path, encoding="utf-8") as file:
        mine = Program(file.read(), path, vars(module))
    right = load_solution(solution)
    # Inside a loop a line does one part of what the solution's does at once, and is no line to replace.
    if has_loop(mine.text, task) and not has_loop(solution, task):
        return None
    # fork_rng: the judges' random state stays as it was.
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        own, error, state = _run(mine, task, trial, {})
        expected, _, _ = _run(right, task, trial, state)
    difference = _compare(_Runs(own, expected, right, mine), error, mine)
    return difference if difference and _can_be_written(difference, mine) else None


def _can_be_written(difference: LineDifference, program: Program) -> bool:
    """Whether the function or class around a line has every name that the right line reads.

    A learner may have chosen other names, and a line that needs ours would raise an error.
    """
    line = difference.right
    around = [x for x in ast.parse(program.text).body if x.lineno <= difference.line <= (x.end_lineno or 0)]
    nodes = [node for tree in (ast.parse(line), *around) for node in ast.walk(tree)]
    known = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    known |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    known |= program.names.keys() | vars(builtins).keys()
    return all(name.id in known for name in ast.walk(ast.parse(line)) if isinstance(name, ast.Name))


class _Runs:
    """The assignments of both runs, by their keys and in their order."""

    def __init__(
        self, own: list[Assignment], expected: list[Assignment], solution: Program, mine: Program
    ) -> None:
        self.own, self.expected, self.solution, self.mine = own, expected, solution, mine
        self.own_by_key: dict[Key, list[Assignment]] = defaultdict(list)
        self.expected_by_key: dict[Key, list[Assignment]] = defaultdict(list)
        for assignments, by_key in ((own, self.own_by_key), (expected, self.expected_by_key)):
            for assignment in assignments:
                by_key[assignment.key].append(assignment)

    def replaced(self, assignment: Assignment, match: Assignment, said: str) -> LineDifference:
        """The difference that a line is which should be another."""
        line = _line(match.statement, self.solution)
        return LineDifference(assignment.statement.lineno, assignment.name, said, line)

    def missing(self, match: Assignment) -> LineDifference | None:
        """The difference that a line of the solution is which was left out."""
        said = f"a line that changes `{match.name}` is missing, or its result is not assigned"
        # The right expression may stand there, with nothing to hold its result.
        for node in ast.walk(ast.parse(self.mine.text)):
            value = getattr(match.statement, "value", None)
            if isinstance(node, ast.Expr) and value and ast.dump(node.value) == ast.dump(value):
                right = _line(match.statement, self.solution)
                return LineDifference(node.lineno, match.name, said, right)
        # A line that does a part of it, such as `q = rotate(q)` for both q and k, is the one to replace.
        for name in _targets(match.statement):
            number = _position(self.expected_by_key[match.function, name], match.statement)
            made = self.own_by_key[match.function, name]
            if number is not None and number < len(made):
                return self.replaced(made[number], match, said)
        before = [a for a in self.expected[: self.expected.index(match)] if a.function == match.function]
        for previous in reversed(before):
            number = _position(self.expected_by_key[previous.key], previous.statement) or 0
            made = self.own_by_key[previous.key]
            if number < len(made):
                line = _line(match.statement, self.solution)
                return LineDifference(made[number].statement.lineno, match.name, said, line, after=True)
        return None


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
            if number + 1 < len(made) or not _describe(assignment, matches[-1].value):
                continue
            if number < len(matches) and not _describe(assignment, matches[number].value):
                return runs.missing(matches[number + 1])
            number = len(matches) - 1
        if number >= len(matches):
            continue
        match = matches[number]
        # A line that is the solution's own is not to blame for what it was given.
        if not _is_same(assignment.statement, match.statement) and (
            said := _describe(assignment, match.value)
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
    for name in _targets(assignment.statement):
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
        if not made or len(runs.own_by_key[match.key]) > number:
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
        others = [a for a in made if a.key not in known and "." in a.name and a.name.endswith(")") == is_call]
        if function_result := [a for a in made if a.name == "return" and a.key not in known]:
            others = function_result
        if others:
            return runs.replaced(others[0], match, f"{match.function} needs another line")
        if is_result or number or match.name.startswith("self.") or match.name.endswith(")"):
            return runs.missing(match) or runs.replaced(made[-1], match, f"{match.function} needs this line")
    return None


def _unknown_line(error: Exception, runs: _Runs, mine: Program) -> int | None:
    """The line that raised an error, if the solution assigns nothing of its names; else None."""
    frames = [f for f in traceback.walk_tb(error.__traceback__) if f[0].f_code.co_filename == mine.file]
    if not frames:
        return None
    frame, line = frames[-1]
    for statement in ast.walk(ast.parse(mine.text)):
        if isinstance(statement, ast.stmt) and statement.lineno == line:
            names = ["return"] if isinstance(statement, ast.Return) else _targets(statement)
            known = any(runs.expected_by_key[frame.f_code.co_name, name] for name in names)
            return line if names and not known else None
    return None


def _is_same(mine: ast.stmt, right: ast.stmt) -> bool:
    return ast.dump(mine) == ast.dump(right)


def _run(
    program: Program, task: str, trial: Trial, state: dict[str, Tensor]
) -> tuple[list[Assignment], Exception | None, dict[str, Tensor]]:
    """Run a task; return its assignments, the error that it ended with, and the weights of its module."""
    assignments: list[Assignment] = []
    inputs = copy.deepcopy(trial.inputs() if callable(trial.inputs) else trial.inputs)
    torch.manual_seed(0)
    try:
        with _recording(program, assignments):
            thing = program.names[task]
            if trial.init is not None:
                thing = thing(**trial.init).train(trial.training)
                # Norms begin as ones: with other numbers no two parts are taken for each other.
                for parameter in thing.parameters():
                    parameter.add_(0.1 * torch.randn_like(parameter))
                _load(thing, state)
                state = {name: value.clone() for name, value in thing.state_dict().items()}
                method = getattr(thing, "attention", None)
                # A block has a part of this name, too; a method gives the weights beside the output.
                thing = thing if method is None or isinstance(method, nn.Module) else method
            trial.then(thing(*inputs), *inputs)
    except Exception as error:
        return assignments, error, state
    return assignments, None, state


def _load(module: nn.Module, state: dict[str, Tensor]) -> None:
    """Give a module those weights of another that fit."""
    own = module.state_dict()
    module.load_state_dict(
        {name: value for name, value in state.items() if name in own and own[name].shape == value.shape},
        strict=False,
    )


@contextmanager
def _recording(program: Program, assignments: list[Assignment]) -> Iterator[None]:
    """Record what every statement of a program assigns, while the block runs."""
    statements = {
        line: statement
        for statement in ast.walk(ast.parse(program.text))
        if isinstance(statement, ast.Assign | ast.AugAssign | ast.Return | ast.Expr)
        for line in range(statement.lineno, (statement.end_lineno or statement.lineno) + 1)
    }
    pending: dict[FrameType, ast.stmt | None] = {}

    def trace(frame: FrameType, event: str, value: Any) -> Callable[..., Any] | None:
        if frame.f_code.co_filename != program.file:
            return None
        statement = pending.get(frame)
        following = statements.get(frame.f_lineno)
        if event == "exception":
            pending[frame] = None
        elif event == "return":
            pending.pop(frame, None)
            if isinstance(statement, ast.Return):
                assignments.append(Assignment(frame.f_code.co_name, "return", statement, _keep(value)))
            elif statement is not None:
                assignments.extend(_assigned(frame, statement))
        elif event == "line" and following is not statement:
            if statement is not None:
                assignments.extend(_assigned(frame, statement))
            pending[frame] = following
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


def _assigned(frame: FrameType, statement: ast.stmt) -> Iterator[Assignment]:
    """The assignments that a statement of a frame has made."""
    for name in _targets(statement):
        if name.endswith("()"):
            yield Assignment(frame.f_code.co_name, name, statement, None)
            continue
        holder, _, attribute = name.rpartition(".")
        value = frame.f_locals.get(holder or name)
        value = getattr(value, attribute, None) if holder else value
        yield Assignment(frame.f_code.co_name, name, statement, _keep(value))


def _targets(statement: ast.stmt) -> list[str]:
    """The names that a statement assigns: variables, attributes of self, and what an index is set of.

    A call that stands alone counts as one by the name of what it calls, "head.eval()".
    """
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        return [f"{ast.unparse(statement.value.func)}()"]
    targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
    names = []
    for target in targets:
        for node in target.elts if isinstance(target, ast.Tuple) else [target]:
            node = node.value if isinstance(node, ast.Subscript) else node
            if isinstance(node, ast.Name | ast.Attribute):
                names.append(ast.unparse(node))
    return names


def _keep(value: Any) -> Any:
    """A value as it is now: tensors may be changed later."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if type(value) in (tuple, list):
        return type(value)(_keep(part) for part in value)
    return value


def _describe(assignment: Assignment, expected: Any) -> str:
    """Say how a value differs from the expected one; "" if it does not."""
    value = assignment.value
    name = "what it returns" if assignment.name == "return" else f"`{assignment.name}`"
    if isinstance(expected, Tensor) and isinstance(value, Tensor):
        if value.shape != expected.shape:
            return f"{name} is {tuple(value.shape)} and should be {tuple(expected.shape)}"
        if expected.dtype == torch.bool and value.dtype != torch.bool:
            return f"{name} holds numbers and should hold True and False"
    if _agree(value, expected):
        return ""
    if isinstance(expected, Tensor) != isinstance(value, Tensor):
        return f"{name} is {_kind(value)} and should be {_kind(expected)}"
    if isinstance(expected, int | float | nn.Linear):
        return f"{name} is {value!r:.70} and should be {expected!r:.70}"
    return f"{name} is the first that differs from the solution; the lines before it are right"


def _kind(value: Any) -> str:
    if isinstance(value, tuple):
        return f"a tuple of {len(value)}"
    return "a tensor" if isinstance(value, Tensor) else f"{value!r:.70}"


def _agree(value: Any, expected: Any) -> bool:
    """Whether two values are the same, up to rounding; kinds that cannot be compared count as the same."""
    if isinstance(expected, Tensor) and isinstance(value, Tensor):
        same = value.shape == expected.shape
        return same and torch.allclose(
            value.double(), expected.double(), TOLERANCE, TOLERANCE, equal_nan=True
        )
    if isinstance(expected, Tensor) or isinstance(value, Tensor):
        return False
    if isinstance(expected, nn.Linear) and isinstance(value, nn.Linear):
        return value.weight.shape == expected.weight.shape  # with or without a bias
    if isinstance(expected, tuple) and isinstance(value, tuple):
        pairs = zip(value, expected, strict=False)
        return len(value) == len(expected) and all(_agree(a, b) for a, b in pairs)
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
    frames = [f for f in traceback.walk_tb(error.__traceback__) if f[0].f_code.co_filename == mine.file]
    # From the innermost: what it was given may be the caller's mistake.
    for frame, line in reversed(frames):
        function = frame.f_code.co_name
        for statement in ast.walk(ast.parse(mine.text)):
            if not isinstance(statement, ast.stmt) or statement.lineno != line:
                continue
            names = ["return"] if isinstance(statement, ast.Return) else _targets(statement)
            for name in names:
                matches = runs.expected_by_key[function, name]
                number = min(counts[function, name] + 1, len(matches))
                if number and not _is_same(statement, matches[number - 1].statement):
                    right = _line(matches[number - 1].statement, runs.solution)
                    return LineDifference(line, name, "", right, raised=True)
    return None


def _line(statement: ast.stmt, program: Program) -> str:
    """The text of a statement, on one line and without its comment."""
    lines = (ast.get_source_segment(program.text, statement) or "").splitlines()
    return " ".join(line.split("  #")[0].strip() for line in lines)
