"""Which step of the solution a learner's code lacks, where it has names and lines of its own.

Both are run on the same numbers, and values are matched by what they hold, whatever they are called. What is
found is a guess: it is told only after it was tried (see `ladder`).
"""

from __future__ import annotations

import ast
import re
import warnings
from types import ModuleType

import torch
from torch import Tensor

from regard.learn.exercise import find_names
from regard.learn.hints.first_difference import (
    MOST,
    LineDifference,
    describe_difference,
    line_of,
    values_agree,
)
from regard.learn.hints.trial_run import Assignment, Program, TrialRun, load, run_trial, targets_of
from regard.learn.lesson import Trial


def find_missing_steps(task: str, trial: Trial, module: ModuleType, solution: str) -> list[LineDifference]:
    """Return the steps of the solution that the learner's code does not come to, in their order.

    The lines to write are in the names of the learner's code. They are returned only if the code gives the
    solution's result with all of them in it; [] if it does not.
    """
    path = str(module.__file__)
    with open(path, encoding="utf-8") as file:
        mine = Program(file.read(), path, vars(module))
    right = load(solution, "<solution>")
    steps: list[LineDifference] = []
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        for _ in range(MOST):
            own = run_trial(mine, task, trial, {})
            expected = run_trial(right, task, trial, own.state)
            if own.error is None and values_agree(own.result, expected.result):
                return steps
            step = _find_missing_step(own, expected, right, mine)
            if step is None or not step.right:
                return []
            steps.append(step)
            mine = mine.with_line(step.line, step.right, after=False)
    return []


def _find_missing_step(
    own: TrialRun, expected: TrialRun, right: Program, mine: Program
) -> LineDifference | None:
    """The first step of the solution that the learner's run does not come to; None if it cannot be told."""
    ours = [a for a in own.assignments if isinstance(a.value, Tensor) and "." not in a.name]
    theirs = [a for a in expected.assignments if isinstance(a.value, Tensor | tuple) and "." not in a.name]
    names: dict[str, str] = {}
    reached, last = -1, -1  # the last of theirs that is reached, and where in ours
    for number, step in enumerate(theirs):
        places = [n for n, a in enumerate(ours) if values_agree(a.value, step.value)]
        if places and isinstance(step.value, Tensor) and step.name != "return":
            names[step.name] = ours[places[0]].name
            reached, last = number, max(last, places[0])
    missing = next((a for a in theirs[reached + 1 :] if a.name not in names), None)
    if missing is None:
        return None
    suspect = _suspect(missing, own.assignments, ours[last] if last >= 0 else None)
    # In a loop a value is built up, and no line of the solution can stand in its place.
    if suspect is None or _is_in_loop(suspect, mine):
        return None
    if suspect.name != "return" and missing.name != "return":
        names[missing.name] = suspect.name
    said = describe_difference(suspect, missing.value)
    line = line_of(missing.statement, right)
    if suspect.name != missing.name and "return" in (suspect.name, missing.name):
        line = ""
    return LineDifference(suspect.statement.lineno, suspect.name, said, _renamed(line, names), step=line)


def _suspect(missing: Assignment, ours: list[Assignment], last: Assignment | None) -> Assignment | None:
    """The learner's assignment that should hold the missing value: the first of its shape after the last
    right one, or else the next one.
    """
    start = next((n + 1 for n, a in enumerate(ours) if a is last), 0)
    after = [
        a for a in ours[start:] if "." not in a.name and (last is None or a.statement is not last.statement)
    ]
    if isinstance(missing.value, tuple):
        return next((a for a in after if a.name == "return"), None)
    alike = [a for a in after if isinstance(a.value, Tensor) and a.value.shape == missing.value.shape]
    first = next(iter([*alike, *(a for a in after if isinstance(a.value, Tensor))]), None)
    # What is built up in several lines, or in a loop, counts as it is in the end.
    return first and [a for a in after if a.name == first.name][-1]


def _is_in_loop(assignment: Assignment, program: Program) -> bool:
    line = assignment.statement.lineno
    loops = (node for node in ast.walk(ast.parse(program.text)) if isinstance(node, ast.For | ast.While))
    return any(loop.lineno < line <= (loop.end_lineno or line) for loop in loops)


def _renamed(line: str, names: dict[str, str]) -> str:
    """A line of code with other names in it, but not those of attributes and arguments."""
    return re.sub(r"(?<![.\w])[A-Za-z_]\w*(?!\w|=[^=]|\()", lambda found: names.get(found[0], found[0]), line)


def find_superfluous(task: str, module: ModuleType, solution: str) -> list[LineDifference]:
    """Return the statements of the learner's `task` that the solution has not, each to be left out."""
    with open(str(module.__file__), encoding="utf-8") as file:
        mine = _simple_statements(file.read(), task)
    known = {ast.dump(statement) for statement in _simple_statements(solution, task)}
    return [
        LineDifference(statement.lineno, name, f"this line changes `{name}` once more", "pass")
        for number, statement in enumerate(mine)
        for name in targets_of(statement)
        if ast.dump(statement) not in known and any(name in targets_of(before) for before in mine[:number])
    ]


def _simple_statements(program: str, task: str) -> list[ast.stmt]:
    """The statements without a body in the definition of a task, in the order of their lines."""
    # A file may have no such definition: a class that was imported.
    definitions = (node for node in ast.parse(program).body if task in find_names(node))
    statements = (node for x in definitions for node in ast.walk(x) if isinstance(node, ast.stmt))
    return sorted((x for x in statements if not hasattr(x, "body")), key=lambda x: x.lineno)
